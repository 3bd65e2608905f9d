"""One scenario at every combination of some values."""

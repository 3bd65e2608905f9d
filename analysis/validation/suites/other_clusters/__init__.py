"""The suite of other clusters."""

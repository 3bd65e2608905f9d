"""`gcsim calibrate`: turn measurements into entries that a scenario can name."""

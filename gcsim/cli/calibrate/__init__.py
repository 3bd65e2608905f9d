"""`gcsim calibrate`: what is measured becomes an entry that a scenario can name."""

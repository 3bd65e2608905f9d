"""Elements as one bit each."""

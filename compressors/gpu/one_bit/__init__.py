"""Elements as one bit each on a GPU."""

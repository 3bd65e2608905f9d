"""One collective algorithm a file: pure functions from entry times to exit times."""

"""Suite `accuracy`."""

"""Suite `papers`."""

"""Suite `regret`."""

"""Suite `scaling`."""

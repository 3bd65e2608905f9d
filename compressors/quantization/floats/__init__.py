"""Methods that send shorter floating-point numbers."""

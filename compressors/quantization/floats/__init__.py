"""Methods that send shorter floating-point formats."""

"""Methods that send thin factors of a matrix."""

"""Methods that send elements whose sign is certain."""

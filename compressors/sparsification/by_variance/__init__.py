"""Methods that send elements whose sign is statistically certain."""

"""What does this machine cost? Kernels, sums, the code around an exchange."""

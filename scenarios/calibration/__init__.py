"""Calibration of this machine: kernels, sums, the code around an exchange."""

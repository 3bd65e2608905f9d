"""Devices: prices of kernels, and times of forward and backward passes."""

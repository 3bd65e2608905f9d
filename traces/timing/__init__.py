"""Timing of kernels and training steps on this device."""

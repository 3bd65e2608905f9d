"""Passes and gradients in a profile of PyTorch's profiler."""

"""Passes and gradients in a trace of PyTorch's profiler."""

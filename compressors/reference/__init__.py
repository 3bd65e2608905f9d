"""PyTorch's own communication hooks, bit for bit."""

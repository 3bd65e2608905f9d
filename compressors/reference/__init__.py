"""PyTorch's own DDP communication hooks, reproduced bit for bit."""

"""What PyTorch's own communication hooks do, bit for bit."""

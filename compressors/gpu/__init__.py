"""How do tensors on a GPU become payloads without leaving it? Kernels and torch's operators, one file a kind of work."""

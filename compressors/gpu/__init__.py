"""How do tensors on a GPU become payloads without leaving it? Kernels, one file a kind of work."""

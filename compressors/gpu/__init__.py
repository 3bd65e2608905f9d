"""Kernels on a GPU: tensors become payloads without leaving it, one file per kind of work."""

"""Selection of elements on a GPU: the kernels of `coding/selecting`."""

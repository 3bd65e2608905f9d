"""A compressor as communication hook of PyTorch's DistributedDataParallel."""

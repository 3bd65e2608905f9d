"""A compressor as a communication hook of PyTorch's DistributedDataParallel."""

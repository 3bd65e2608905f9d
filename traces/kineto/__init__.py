"""What does a profile of PyTorch's profiler say of passes and gradients?"""

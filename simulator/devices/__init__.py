"""What does a device need for a kernel, and for a forward and a backward pass?"""

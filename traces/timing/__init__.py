"""How long do kernels and training steps take on this device?"""

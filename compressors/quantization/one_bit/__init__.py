"""Methods that send one bit per element."""

"""Methods that send the largest elements."""

"""Methods that send one bit an element."""

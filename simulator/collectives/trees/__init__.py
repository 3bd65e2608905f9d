"""The all-reduce over two binary trees, in pieces that follow each other."""

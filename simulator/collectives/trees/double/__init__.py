"""The all-reduce over two binary trees."""

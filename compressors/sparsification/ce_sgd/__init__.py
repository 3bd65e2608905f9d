"""CE-SGD."""

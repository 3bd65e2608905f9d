"""The method CE-SGD."""

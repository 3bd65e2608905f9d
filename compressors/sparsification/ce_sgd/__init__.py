"""CE-SGD: a selection that stays as long as it serves."""

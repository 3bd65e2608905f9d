"""Links fitted to a user's own measurements."""

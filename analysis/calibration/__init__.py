"""Links and layer models fitted to a user's own measurements."""

"""Results in words and numbers: table, answer, sources."""

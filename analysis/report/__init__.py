"""Results in words and numbers: tables, answers, sources."""

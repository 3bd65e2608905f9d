"""What does a result say in words and numbers? Table, answer, sources."""

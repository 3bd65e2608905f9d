"""What should I use on my cluster, and what should I change first? An answer without a file."""

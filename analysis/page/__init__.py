"""A result in a browser: one HTML file that needs nothing else."""

"""Tasks of live training, and their data."""

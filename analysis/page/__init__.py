"""A result in a browser: one self-contained HTML file."""

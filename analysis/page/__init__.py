"""Report of a result for a browser: one self-contained HTML file."""

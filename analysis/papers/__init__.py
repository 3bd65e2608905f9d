"""Published figures of a paper and their reproductions, side by side."""

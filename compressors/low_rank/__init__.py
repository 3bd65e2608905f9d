"""Methods that send low-rank factors of a gradient matrix."""

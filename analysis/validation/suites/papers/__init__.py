"""The suite of four papers' arithmetic, and of an order of methods."""

"""The suite of deployed hooks on a GPU."""

"""The suite of Gloo's collectives on shaped links."""

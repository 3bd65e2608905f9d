"""Times of a round's messages, each on its path."""

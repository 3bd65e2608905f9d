"""Selection of elements: the largest, those above a threshold, and random ones."""

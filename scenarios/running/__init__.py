"""The stages of a run, and what stands in its result."""

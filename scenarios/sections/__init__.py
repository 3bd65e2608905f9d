"""What may stand in a scenario file? A file a section, and the values that it becomes."""

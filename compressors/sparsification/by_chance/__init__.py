"""Methods that send elements drawn at random, or in turn."""

"""From a text to plain data with places: YAML, overrides, files that it names, what is wrong."""

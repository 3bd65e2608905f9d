"""From a text to plain data with places: YAML, overrides, named files, problems."""

"""How is advice given? In a dozen lines, as JSON, and as a map."""

"""Reports of a validation: tables, Markdown page, JSON."""

"""Reports of a validation: tables, page, JSON."""

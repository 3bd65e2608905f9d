"""What does a person read of a validation? Tables, page, JSON."""

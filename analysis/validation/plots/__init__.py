"""The figures of a validation."""

"""Settings of a link in a scenario, read and written back."""

"""The suite of seven ways to schedule dense exchanges."""

"""Scenario files, the catalogue, and the run from scenario to result."""

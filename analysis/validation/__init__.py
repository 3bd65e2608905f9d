"""Suites of measurements, and the errors of predictions for them."""

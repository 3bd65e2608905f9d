"""Coefficients of the layer model for passes that were not measured, and its errors."""

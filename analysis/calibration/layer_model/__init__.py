"""Coefficients of the layer model for unmeasured passes, and its errors."""

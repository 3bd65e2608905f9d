"""How long do passes take that nobody measured? Coefficients of the layer model, and its errors."""

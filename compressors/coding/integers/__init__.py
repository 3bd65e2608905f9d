"""How do integers become bytes? In fields of equal width, as digits, in Elias codes."""

"""Small and unbounded integers as bytes, on a GPU."""

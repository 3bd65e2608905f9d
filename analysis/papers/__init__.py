"""Figures that a paper printed beside reproduced ones."""

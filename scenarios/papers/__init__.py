"""Figures printed in four papers, beside results of the same experiments in miniature."""

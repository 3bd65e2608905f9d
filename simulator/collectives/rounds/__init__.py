"""Collectives of few rounds, in each of which a rank talks to one partner."""

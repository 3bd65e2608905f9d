"""Gradients and their traffic: models, data, recording, and the traffic profile."""

"""Predictions and measurements on this machine: real Gloo ranks in network namespaces."""

"""Advice without a file: the method to use on a cluster, and the change that helps most."""

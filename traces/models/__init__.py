"""Shipped models and their layers."""

"""Shipped models, and facts about their layers."""

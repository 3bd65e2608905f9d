"""Checks of a scenario: settings that conflict, and settings without effect."""

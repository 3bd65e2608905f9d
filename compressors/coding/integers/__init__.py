"""Integers as bytes: fixed-width fields, digits, Elias codes."""

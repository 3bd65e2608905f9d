"""Exchanges with servers or roots: many flows that share links max-min fairly."""

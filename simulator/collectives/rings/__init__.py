"""Collectives that go around a ring, and the recurrence under them."""

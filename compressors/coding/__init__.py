"""Encoding of payloads: frames, packed integers, coded positions."""

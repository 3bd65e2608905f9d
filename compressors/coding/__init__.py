"""Bytes of a payload: frames, packed integers, coded positions."""

"""Fit of a link to measured collectives, or a link from direct measurements of two hosts."""

"""Rates of flows that share links: max-min fairness."""

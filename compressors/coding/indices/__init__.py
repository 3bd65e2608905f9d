"""How do positions travel, and the values that belong to them?"""

"""How far are predictions from what was measured on real clusters?"""

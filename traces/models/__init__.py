"""Which models are shipped, and what are their layers?"""

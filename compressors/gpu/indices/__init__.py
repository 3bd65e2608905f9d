"""How are positions coded on a GPU?"""

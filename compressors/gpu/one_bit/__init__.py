"""How does an element become one bit on a GPU?"""

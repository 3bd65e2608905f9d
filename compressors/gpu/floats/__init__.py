"""How does a float32 become a shorter number on a GPU?"""

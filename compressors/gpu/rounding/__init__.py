"""How is a vector rounded to levels on a GPU?"""

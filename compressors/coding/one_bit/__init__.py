"""How does an element travel as one bit?"""

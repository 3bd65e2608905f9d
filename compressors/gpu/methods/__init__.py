"""What do single methods have of their own on a GPU?"""

"""How are gradients recorded, of a shipped model or in a user's own loop?"""

"""How is a vector rounded at random to levels, and how do levels become bytes?"""

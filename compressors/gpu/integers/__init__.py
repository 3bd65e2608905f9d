"""How do small and unbounded integers become bytes on a GPU?"""

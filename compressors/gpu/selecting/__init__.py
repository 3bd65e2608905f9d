"""Which elements travel, found on a GPU?"""

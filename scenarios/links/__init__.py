"""What may a scenario say of a link, and how is it written back?"""

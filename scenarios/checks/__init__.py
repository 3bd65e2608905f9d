"""Which settings of a scenario conflict, and which have no effect?"""

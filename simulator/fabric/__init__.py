"""How long do the messages of a round take, each on its way?"""

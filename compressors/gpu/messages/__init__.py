"""How does a whole bucket become a message on a GPU, and a message an update?"""

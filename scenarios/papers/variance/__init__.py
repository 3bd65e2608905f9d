"""Which tables of the variance-based paper are run in miniature?"""

"""Which tables and figures of the ORQ paper are run in miniature?"""

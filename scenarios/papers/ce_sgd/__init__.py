"""Which tables and figures of the CE-SGD paper are run in miniature?"""

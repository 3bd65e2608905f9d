"""What did four papers print, and what comes out of the same experiments in miniature?"""

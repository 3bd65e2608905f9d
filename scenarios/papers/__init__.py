"""Published figures of four papers and results of the same experiments in miniature."""

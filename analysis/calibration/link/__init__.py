"""Which link reproduces measured collectives? Model, solver, report."""

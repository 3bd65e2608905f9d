"""Which link reproduces what was measured? Model, solver, report; without collectives, direct."""

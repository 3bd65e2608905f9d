"""Link that reproduces measurements: model, solver, report; without collectives, direct."""

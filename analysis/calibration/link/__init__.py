"""Link that reproduces measurements: model, solver, report; or direct, without collectives."""

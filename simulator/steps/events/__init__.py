"""The step, event by event, in SimPy."""

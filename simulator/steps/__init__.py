"""When does what happen in a training step? Two engines for one plan, and means of many steps."""

"""Training steps: two engines for one plan, and means over many steps."""

"""Options for every method: initial dense steps, dense tensors, half-precision sums."""

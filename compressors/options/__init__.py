"""Options of every method: dense steps first, dense tensors, half-precision sums."""

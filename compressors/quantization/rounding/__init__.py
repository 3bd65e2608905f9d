"""Methods that round each element stochastically to one of a few levels."""

"""Methods that round each element at random to one of a few levels."""

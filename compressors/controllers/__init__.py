"""Methods that choose another method's parameters while training runs."""

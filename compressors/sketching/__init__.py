"""Methods that send linear sketches of the gradient."""

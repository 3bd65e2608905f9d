"""Methods that send linear sketches."""

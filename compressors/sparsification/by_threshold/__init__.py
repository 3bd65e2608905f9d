"""Methods that send the elements above a threshold, given or estimated."""

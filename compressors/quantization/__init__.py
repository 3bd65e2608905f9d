"""Methods that send every element in fewer bits."""

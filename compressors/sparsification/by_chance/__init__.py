"""Methods that send randomly drawn elements, or all elements in turn."""

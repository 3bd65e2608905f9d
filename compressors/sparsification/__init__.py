"""Methods that send some elements and omit the others."""

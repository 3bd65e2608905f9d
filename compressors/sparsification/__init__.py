"""Methods that send some elements and leave out the rest."""

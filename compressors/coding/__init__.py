"""What do the bytes of a payload look like? Frames, packed integers, coded positions."""

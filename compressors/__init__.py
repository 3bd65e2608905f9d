"""What goes on the wire: every compressor as a generator of collectives, with real payloads."""

"""How long does it take? The integer clock, links, collectives, devices and the SimPy step."""

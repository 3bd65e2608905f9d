"""Simulated time: the integer clock, links, collectives, devices and the SimPy step."""

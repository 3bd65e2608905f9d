"""Plans: which offered machines, how many and with which settings, for so many tokens."""

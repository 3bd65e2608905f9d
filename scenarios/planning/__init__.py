"""Plans: which offered machines, how many and with which settings, for a training of so many tokens."""

"""Time to a trained model: trajectories on the clock of a scenario's clusters."""

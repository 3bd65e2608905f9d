"""How long until the model is trained? Trajectories, laid on the clock of a scenario's clusters."""

"""Which gradients, and what was sent: models, data, recording, and the traffic profile."""

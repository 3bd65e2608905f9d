"""Recording of gradients: of a shipped model, or in a user's own loop."""

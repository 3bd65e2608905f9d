"""Methods whose replicas take local steps between synchronisations."""

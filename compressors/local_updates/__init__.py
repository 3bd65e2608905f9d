"""Methods whose replicas move on their own between synchronisations."""

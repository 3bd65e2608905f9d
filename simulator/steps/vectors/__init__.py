"""The step for all ranks at once, in compiled loops."""

"""Trajectories of training with a compressor in the loop; they know no cluster."""

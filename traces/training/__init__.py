"""Trajectories of training with a compressor in the loop; independent of the cluster."""

"""What comes of training with a compressor in the loop? Trajectories, which know no cluster."""

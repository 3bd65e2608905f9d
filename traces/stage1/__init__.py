"""Stage 1: real compressors on real gradients, metered, and kept."""

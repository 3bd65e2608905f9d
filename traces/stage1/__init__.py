"""Stage 1: real compressors run on real gradients, metered and cached."""

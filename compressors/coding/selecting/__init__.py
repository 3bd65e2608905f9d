"""Which elements travel? The largest, those above a threshold, those drawn at random."""

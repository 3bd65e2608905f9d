"""Links, delays and losses, and paths between two ends."""

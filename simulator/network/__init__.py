"""What does a message see on its way? Links, delays and losses, and paths between two ends."""

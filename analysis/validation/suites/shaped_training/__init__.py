"""The suite of training steps on shaped links."""

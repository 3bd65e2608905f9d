"""What does live training learn? Tasks and their data."""

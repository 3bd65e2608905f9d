"""What happened when in a sample iteration? A trace for Perfetto."""

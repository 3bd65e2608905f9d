"""Methods that send what exceeds a threshold, fixed or found."""

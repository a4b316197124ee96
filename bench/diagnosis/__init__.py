"""What went wrong in an attempt, from what its ranks left behind. Pure."""

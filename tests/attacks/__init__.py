"""What was tried against a federation, each attack as a test."""

"""What server and nodes both know."""

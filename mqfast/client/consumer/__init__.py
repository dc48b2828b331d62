"""What receives messages."""

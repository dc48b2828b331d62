"""What sends messages."""

"""Simple consumers: messages by POP, each acknowledged by itself."""

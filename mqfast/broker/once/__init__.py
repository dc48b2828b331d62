"""Rows that are stored once: what the broker remembers of writes, and how a restart learns the same from the log."""

"""Consumption: requests that read messages (pull, hold) and that read or note how far a group has come (offsets)."""

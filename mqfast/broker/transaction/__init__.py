"""Transactions of a broker: half messages, ends, checks, recovery."""

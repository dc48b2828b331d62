"""Idempotent writes: rows that are stored once, by producer state (key, batch, partition, row)."""

"""Readers of a store without a lock or a thread, beside a live writer or on a dead store."""

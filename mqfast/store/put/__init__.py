"""Puts: calls, producers, results, batches."""

"""The Python side of a put: calls, producers, results, batches."""

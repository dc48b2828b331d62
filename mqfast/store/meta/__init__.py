"""The small files: checkpoint, topics, offsets, leases, notes."""

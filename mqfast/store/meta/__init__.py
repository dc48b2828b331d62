"""Small files of a store: checkpoint, topics, offsets, leases, notes."""

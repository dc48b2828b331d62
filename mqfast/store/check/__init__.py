"""Recovery, verify, repair and salvage of a store."""

"""A cluster that can be replayed from a seed."""

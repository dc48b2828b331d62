"""append.pyx has no Python names."""

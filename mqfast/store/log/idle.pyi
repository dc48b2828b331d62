"""idle.pyx has no Python names."""

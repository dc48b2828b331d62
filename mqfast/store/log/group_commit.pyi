"""group_commit.pyx has no Python names."""

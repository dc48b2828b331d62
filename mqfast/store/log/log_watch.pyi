"""log_watch.pyx has no Python names."""

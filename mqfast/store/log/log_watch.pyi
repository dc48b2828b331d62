"""log_watch.pyx has nothing for Python."""

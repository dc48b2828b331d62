"""What administrates a cluster."""

"""Administration of clusters."""

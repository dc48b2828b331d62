"""Gets and queries: the read path, results and their columns."""

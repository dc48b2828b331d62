"""The CommitLog: append, commit, flush, group commit, preallocation, retention of its files."""

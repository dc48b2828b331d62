"""Replication of the log: a master sends its bytes, a slave appends them. Uses the store and sockets of its own."""

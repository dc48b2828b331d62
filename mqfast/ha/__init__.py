"""Replication of the log: a master sends its bytes, a slave appends them. Knows the store; has its own sockets."""

"""Replication between the brokers of a name: master, slave, table synchronisation and fail-over."""

"""A running cluster as an access: queues of brokers read over the network. See ``remote_access.py``."""

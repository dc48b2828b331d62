"""Consumers: push and pull, and the requests, offsets and allocation strategies that both use."""

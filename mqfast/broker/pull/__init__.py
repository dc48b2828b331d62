"""Consumption: pulls, long polling, offsets of groups, messages that consumers send back."""

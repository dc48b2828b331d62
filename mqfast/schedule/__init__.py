"""Delayed delivery: messages of delay levels and timed messages. Depends on the store, not on the network."""

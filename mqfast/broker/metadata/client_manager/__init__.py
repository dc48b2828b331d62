"""The connected clients of a broker: consumer groups, producer groups, heartbeats, queue locks."""

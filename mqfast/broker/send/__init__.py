"""Sends: single messages, batches, replies, and the wait until a message is committed."""

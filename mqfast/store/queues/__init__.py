"""ConsumeQueues: 20-byte units, batch queues, extensions, and the table of all queues."""

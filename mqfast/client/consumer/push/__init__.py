"""Push: queues are pulled ahead, and messages handed to handlers or to a loop."""

"""Pull: queues are pulled ahead, and messages handed out where the application asks for them."""

"""Routes of topics, and the choice of the queue of a message."""

"""Where topics are, and which queue a message goes to."""

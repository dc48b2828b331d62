"""Messages that come back later: those of delay levels, and timed ones. Knows the store, and nothing of a network."""

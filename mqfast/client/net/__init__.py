"""How a client reaches a cluster: steps, the shells that run them, the instance that all clients of a process share."""

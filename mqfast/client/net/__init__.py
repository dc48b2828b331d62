"""The network of a client: request steps, the drivers that run them, and the client instance of a process."""

"""Other clients' public names over this client; each client in a module of its own."""

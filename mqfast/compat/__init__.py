"""Public names of other clients over this client; each client in a separate module."""

"""Adapters between the client and other libraries; each in a module of its own, imported by its full name."""

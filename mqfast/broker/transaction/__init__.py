"""transaction: see docs/architecture.md."""

"""filter: see docs/architecture.md."""

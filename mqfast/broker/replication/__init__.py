"""replication: see docs/architecture.md."""

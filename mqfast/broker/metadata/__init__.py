"""metadata: see docs/architecture.md."""

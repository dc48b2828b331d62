"""schedule: see docs/architecture.md."""

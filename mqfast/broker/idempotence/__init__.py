"""idempotence: see docs/architecture.md."""

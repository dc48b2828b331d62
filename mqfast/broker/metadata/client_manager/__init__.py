"""client_manager: see docs/architecture.md."""

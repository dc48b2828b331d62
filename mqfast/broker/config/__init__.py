"""Settings of a broker, its announced address, its log, and the check of a store before a migration."""

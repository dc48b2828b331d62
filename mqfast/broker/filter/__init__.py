"""Message filters of consumers: tag expressions and SQL92 expressions."""

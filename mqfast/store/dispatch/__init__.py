"""From the log into queues and index (RocketMQ: ReputMessageService)."""

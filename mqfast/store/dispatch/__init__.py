"""Dispatch of the log to queues and index (RocketMQ: ReputMessageService)."""

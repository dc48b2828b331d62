"""What admins ask a broker, and what operators see of it: queries, topics, groups, settings, statistics, metrics.

Each file holds the requests of one subject; ``admin.py`` composes them. Source: AdminBrokerProcessor,
QueryMessageProcessor, BrokerMetricsManager.
"""

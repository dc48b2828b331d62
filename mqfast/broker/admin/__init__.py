"""The requests of admins: queries, topics, groups, settings, statistics.

Each file has the requests of a subject; ``admin.py`` composes them. Source: AdminBrokerProcessor,
QueryMessageProcessor, BrokerMetricsManager.
"""

"""The name server: the registered brokers, and the brokers of each topic.

Reading order: ``tables.py`` the registrations, ``kv_config.py`` values in a file, ``processor.py`` the requests,
``namesrv_config.py`` settings, ``server.py`` the process. Name servers do not know each other: every broker registers
with all of them.

Does not import the store. Source: RocketMQ's namesrv module.
"""

"""The name server: which brokers there are, and on which of them a topic is.

Reading order: ``tables.py`` what is known, ``kv_config.py`` what is kept in a file, ``processor.py`` the requests,
``namesrv_config.py`` settings, ``server.py`` the process. Name servers do not know each other: every broker registers
with all of them.

This room must never import the store. Source: RocketMQ's namesrv module.
"""

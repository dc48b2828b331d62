"""The broker: RocketMQ's requests of producers and consumers on a message store.

What is here so far needs no store: who is connected (``heartbeat.py``, ``consumer_manager.py``,
``producer_manager.py``), which consumer has which queue (``queue_locks.py``), and the requests for these
(``client_processor.py``).

This is the only room that knows both sides, remoting and store. Source: RocketMQ's broker module.
"""

"""The broker: RocketMQ's requests of producers, consumers and admins on a message store.

``broker.py`` composes it; ``context.py`` is what each part gets. This is the only room that knows both sides, remoting
and store. It must never read files of a store but through the store. Source: RocketMQ's broker module.
"""

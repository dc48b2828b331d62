"""Engine: the interface of the store for what is built on it, as the broker, replication and Spark (RocketMQ:
MessageStore, as its broker sees it). ``MessageStore.engine`` is the engine of an open store.

It must never hold state of its own, and never do per-message work: both belong to Core and to the rooms. A method that
is called for each message is a function of its room, which takes the Core first; it stands here by assignment, so that
a call costs no frame of Python.
"""

from __future__ import annotations

from mqfast.store.core import Core

__all__ = ["Engine"]


class Engine(Core):
    """What the broker, replication and Spark may use of an open store.

    Thread: every method may be called from any thread.
    """

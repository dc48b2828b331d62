"""Engine: the interface of the store for what is built on it, as the broker, replication and Spark (RocketMQ:
MessageStore, as its broker sees it). ``MessageStore.engine`` is the engine of an open store.

It must never hold state of its own, and never do per-message work: both belong to Core and to the rooms. A method that
is called for each message is a function of its room, which takes the Core first; it stands here by assignment, so that
a call costs no frame of Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqfast.store.core import Core

if TYPE_CHECKING:
    from mqfast.errors import MqfastError
    from mqfast.store.log.watermarks import FlushWatch

__all__ = ["Engine"]


class Engine(Core):
    """What the broker, replication and Spark may use of an open store.

    Thread: every method may be called from any thread.
    """

    def watch_flushed(self, callback: Callable[[int, MqfastError | None], object]) -> FlushWatch:
        """Make a watch of the durable position. ``want(end_offset)`` asks for a physical offset to become durable. The
        flush thread then calls ``callback(flushed, error)`` once for each sync, until the offset is covered.

        10,000 waiting requests need one watch, and a heap of their end offsets: one callback a sync tells all whom the
        sync covers. Thread: any. The callback runs in the flush thread and must not block.
        """
        return self.waiters.watch(callback)

"""Offsets of groups in queues that are in memory only: of the last pulls, and those that admins have reset.

Source: ConsumerOffsetManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqfast.store.meta.offsets import ConsumerOffsets

__all__ = ["QueueOffsets", "ResetOffsets"]


class QueueOffsets:
    """An offset of a group in a queue, in memory only. Thread: that of the event loop."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note an offset in place of what was noted before."""
        found = self._offsets.get((group, topic))
        if found is None:
            found = self._offsets[group, topic] = {}
        found[queue_id] = offset

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset; None: there is none."""
        found = self._offsets.get((group, topic))
        return None if found is None else found.get(queue_id)

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset, which is forgotten."""
        found = self._offsets.get((group, topic))
        if found is None:
            return None
        offset = found.pop(queue_id, None)
        if not found:
            del self._offsets[group, topic]
        return offset

    def forget_group(self, group: str) -> None:
        """The group was deleted."""
        for key in [key for key in self._offsets if key[0] == group]:
            del self._offsets[key]

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        for key in [key for key in self._offsets if key[1] == topic]:
            del self._offsets[key]


class ResetOffsets(QueueOffsets):
    """Where admins told groups to go on; the next pull of the queue is told (21), and updates are ignored until then.

    Args: offsets: the table of the store, which gets a reset offset at once.
    Durability: that of the table; after a restart the group goes on at the offset, and nothing is ignored.
    Source: ConsumerOffsetManager.assignResetOffset.
    """

    def __init__(self, offsets: ConsumerOffsets) -> None:
        super().__init__()
        self._table: Final = offsets

    def assign(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Let a group go on at an offset of a queue. Raises: UsageError for a name with ``@`` or numbers below 0."""
        self._table.commit(group, topic, queue_id, offset)
        self.set(group, topic, queue_id, offset)

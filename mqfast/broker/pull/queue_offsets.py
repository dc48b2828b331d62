"""Offsets of groups that are in memory only: of the last pulls, and pending resets. Source: ConsumerOffsetManager."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqfast.store.meta.offsets import ConsumerOffsets

__all__ = ["QueueOffsets", "ResetOffsets"]


class QueueOffsets:
    """Offsets by group and queue, in memory only.

    Attributes: ``waiting``: returns (group, topic, queue id, offset) of other threads, each once; called before any use
        of the offsets.
    Thread: that of the event loop.
    """

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.waiting: Callable[[], Iterable[tuple[str, str, int, int]]] | None = None

    def _take_waiting(self) -> None:
        if self.waiting is not None:
            for group, topic, queue_id, offset in self.waiting():
                self._offsets.setdefault((group, topic), {})[queue_id] = offset

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset."""
        self._take_waiting()
        offsets = self._offsets.get((group, topic))
        if offsets is None:
            offsets = self._offsets[group, topic] = {}
        offsets[queue_id] = offset

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset; None without one."""
        self._take_waiting()
        offsets = self._offsets.get((group, topic))
        return None if offsets is None else offsets.get(queue_id)

    def pop(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove and return the offset; None without one."""
        self._take_waiting()
        offsets = self._offsets.get((group, topic))
        if offsets is None:
            return None
        offset = offsets.pop(queue_id, None)
        if not offsets:
            del self._offsets[group, topic]
        return offset

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        self._take_waiting()
        for key in [key for key in self._offsets if key[0] == group]:
            del self._offsets[key]

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        self._take_waiting()
        for key in [key for key in self._offsets if key[1] == topic]:
            del self._offsets[key]


class ResetOffsets(QueueOffsets):
    """Offsets that admins have reset: returned to the next pull of the queue (21); commits are ignored until then.

    Args: offsets: the table of the store, which gets a reset offset at once.
    Attributes: ``before_assign``: called with group and topic before an offset is reset.
    Durability: that of the table; after a restart the group continues at the offset, and no commit is ignored.
    Source: ConsumerOffsetManager.assignResetOffset.
    """

    def __init__(self, offsets: ConsumerOffsets) -> None:
        super().__init__()
        self._table: Final = offsets
        self.before_assign: Callable[[str, str], object] = lambda _group, _topic: None

    def assign(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset a group's offset of a queue. Raises: UsageError for a name with ``@`` or negative numbers."""
        self.before_assign(group, topic)
        self._table.commit(group, topic, queue_id, offset)
        self.set(group, topic, queue_id, offset)

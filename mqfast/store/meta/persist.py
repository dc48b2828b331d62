"""The metadata service: writes the small files of config/ of a running store.

A table of the store's caller is never written here, and no offset that passes a message which is not durable. A table
waits for space on a full disk; the previous file is still valid then. The tables: metadata.py, offsets.py, notes.py.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from mqfast.errors import DiskFull
from mqfast.store.base.service import Service
from mqfast.store.meta.metadata import QUEUES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqfast.config import StoreConfig
    from mqfast.store.base.event import Event
    from mqfast.store.base.space import Space
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.meta.metadata import TopicConfigTable
    from mqfast.store.meta.notes import StoreNotes
    from mqfast.store.meta.offsets import ConsumerOffsets
    from mqfast.store.queues.queue_store import QueueStore

__all__ = ["MetadataService"]

_MANY_QUEUES: Final = 1024  # of a topic: more than users create, so a higher id may be a mistake
_RETRY_S: Final = 1.0  # during a wait for disk space


class MetadataService:
    """A service that writes topics, offsets of groups, and the store's own notes, by interval and at close.

    Args: start: end of the log at the open; owns_tables: True if topics and offsets belong to the store, False if they
    belong to the caller. Thread: its own; the methods from any.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueStore,
        topics: TopicConfigTable,
        offsets: ConsumerOffsets,
        notes: StoreNotes,
        config: StoreConfig,
        space: Space,
        warn: Callable[[str], None],
        *,
        start: int,
        owns_tables: bool,
    ) -> None:
        self._log = log
        self._queues = queues
        self._topics = topics
        self._offsets = offsets
        self._notes = notes
        self._config = config
        self._space = space
        self._warn = warn
        self._start = start
        self._owns_tables = owns_tables
        self._queues_noted = -1  # number of queues at the last write of the notes
        self.service = Service("metadata", self._step)

    def _step(self, event: Event) -> None:
        pause = self._config.flush_consumer_offset_interval_ms / 1000
        event.wait(_RETRY_S if self._space.waits else pause)
        if self.service.is_stopping:
            return  # the close writes the rest
        if self._owns_tables and not self._log.error_number:
            self._unless_full("consumerOffset.json", self.persist_offsets)
        self._unless_full("topics.json", self.persist_topics)

    def _unless_full(self, name: str, persist: Callable[[], object]) -> None:
        """Persist a table. A full disk delays the write; the previous file is still valid then."""
        try:
            persist()
        except DiskFull as error:
            self._space.see(name, error)
        else:
            self._space.see(name, None)

    def persist_offsets(self) -> None:
        """Make the offsets of all groups durable, behind the messages that they pass, also in a caller's table."""
        self._offsets.persist(before=self._log.flush)

    def persist_last_offsets(self) -> None:
        """Persist the offsets at close, behind the last flush. After a failed flush the offsets may pass messages that
        the disk lacks.
        """
        if self._owns_tables and not self._log.error_number:
            self._offsets.persist()

    def forget_offsets(self, topics: list[str]) -> None:
        """Remove the offsets of topics. Durability: synced, since a group must not skip messages of a topic that is
        created again.
        """
        for topic in topics:
            self._offsets.remove_topic(topic)
        if topics and self._owns_tables:
            self.persist_offsets()

    def delete_topic(self, topic: str) -> None:
        """Remove a topic from the table. Durability: synced, unless the table is the caller's."""
        self._topics.delete(topic)
        if self._owns_tables:
            self._topics.persist()

    def persist_topics(self) -> None:
        """Write the topics, including topics with a first message, and the notes when they are due."""
        if self._owns_tables:
            self._note_topics()
            self._topics.persist()
        is_due = self.service.is_stopping or self._queues_noted != self._queues.count
        # A store that was only read is not changed.
        if is_due and (self._notes.is_there or self._log.written > self._start):
            self.persist_notes()

    def _note_topics(self) -> None:
        """Add an entry for each topic with messages, with as many queues."""
        known: dict[str, int] = {}
        for queue in self._queues.table.all():
            if queue.max_offset > 0 or queue.next_offset > 0:
                known[queue.topic] = max(known.get(queue.topic, 0), min(queue.queue_id + 1, QUEUES_MAX))
        for topic, count in known.items():
            if not topic.startswith(("%LMQ%", "rmq_sys_")):
                config = self._topics.get(topic)
                if config is None or config.read_queue_nums < count:
                    if count > _MANY_QUEUES:
                        self._warn(
                            f"topic {topic}: a message was put to queue {count - 1}, so the topic now counts {count} "
                            "queues, all of which a broker's clients ask; expected queue ids from 0 on, without gaps"
                        )
                    self._topics.ensure(topic, max(count, self._config.default_topic_queue_nums))

    def persist_notes(self) -> None:
        """Note the existing queues and the size of log files."""
        count = self._queues.count
        with contextlib.suppress(DiskFull):  # the next step, or the close, tries again
            self._notes.persist(
                self._queues.present(), self._topics.version_ms, self._config.mapped_file_bytes_commit_log
            )
            self._queues_noted = count

    def close(self) -> None:
        """Stop the service."""
        self.service.stop()

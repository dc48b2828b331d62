"""Recovery of the producer state after a restart: from the file, and from the log after the offset of the file.

The file ``config/mqfastWrites.json`` has all marks up to a physical offset; a scan of the log after that offset finds
the others. Without the file, or with a file that does not match the log, the scan begins at the oldest log file that
may have a write within the time of the settings. The scan runs once, at the first request that needs the state, outside
of the event loop. A file is ignored if the log was truncated or replaced.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.idempotence.producer_state import LastSequence, ProducerStateTable
from mqfast.broker.metadata.topic_manager import (
    DLQ_PREFIX,
    ENDS_TOPIC,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from mqfast.errors import CorruptFile, MqfastError, OffsetError
from mqfast.properties import decode
from mqfast.remoting.once import STAMP, RowSequence, ended, gone
from mqfast.schedule.delay_levels import real_place
from mqfast.store.meta.config_file import ConfigFile
from mqfast.store.record.marked import marked_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqfast.store.engine import Engine

__all__ = ["ProducerStateFile", "last_record", "remember"]

_log = logging.getLogger("mqfast.broker")
FILE: Final = "mqfastWrites.json"
_VERSION: Final = 2
_BLOCK_BYTES: Final = 4 << 20
_FRAME_MAX: Final = 64 << 20
_MARK_NAME: Final = STAMP.encode()


class ProducerStateFile:
    """The file of the producer state.

    Thread: one at a time.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        path = os.path.join(os.path.dirname(engine.queues.paths.topics), FILE)
        self._file: Final = ConfigFile(engine.log.os_api, path)

    def load(self, memory: ProducerStateTable) -> int | None:
        """Fill an empty state. Returns: the physical offset where the scan of the log begins; None: scan all."""
        try:
            said = self._file.load()
        except CorruptFile as error:
            _log.warning("what is remembered of writes is read from the log: %s", error)
            return None
        if not said:
            return None
        try:
            if said["version"] != _VERSION:
                raise ValueError(f"version {said['version']}")
            offset, last = int(said["offset"]), said["last"]
            why = _not_of_this_log(self._engine, offset, last)
            if why is None:
                memory.load(said["writes"])
                memory.newest_begin = -1 if last is None else int(last[0])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"the file is damaged ({error!r})"
        if why is not None:
            _log.warning("what is remembered of writes is read from the log: %s", why)
            self.forget()  # else the log may grow until the file seems to match
            return None
        return offset

    def forget(self) -> None:
        """Delete the file, e.g. on a slave, whose log may be truncated and diverge."""
        os_api = self._engine.log.os_api
        for path in (self._file.path, self._file.path + ".bak"):
            os_api.unlink(path, missing_ok=True)

    def persist(self, writes: dict[str, Any], offset: int, last: list[int] | None, flush: Callable[[], object]) -> None:
        """Write the file, once the log is durable up to the offset."""
        said = {"version": _VERSION, "offset": offset, "last": last, "writes": writes}
        self._file.persist(said, before=flush)


def last_record(engine: Engine, physical_offset: int) -> list[int] | None:
    """Return the identity of the record at a physical offset: offset, store time and checksum of the body."""
    try:
        message = engine.log.message(physical_offset)
    except MqfastError:
        return None
    return [physical_offset, message.store_timestamp, message.body_crc]


def _not_of_this_log(engine: Engine, offset: int, last: list[int] | None) -> str | None:
    end = engine.raw.end
    if offset > end:
        return f"the log ends at {end}, and the file knows it up to {offset}"
    if last is None or last[0] < engine.raw.min_offset:
        return None
    record = last_record(engine, last[0])
    return None if record == last else f"the record at {last[0]} is another one: expected {last}, found {record}"


def remember(engine: Engine, file: ProducerStateFile, memory: ProducerStateTable, now_ms: int) -> None:
    """Fill an empty state from the file and the log up to its end.

    Raises: CorruptFile, StorageError for an unreadable log.
    """
    begin = file.load(memory)
    if begin is not None:
        try:
            _walk(engine, memory, begin)
        except CorruptFile as error:
            _log.warning("what is remembered of writes is read from the log again: its file does not fit (%s)", error)
            file.forget()
            memory.load({})
            memory.newest_begin, begin = -1, None
    if begin is None:
        _walk(engine, memory, _oldest(engine, now_ms - memory.keep_ms))
    memory.expire(now_ms)


def _walk(engine: Engine, memory: ProducerStateTable, begin: int) -> None:
    at = max(begin, engine.raw.min_offset, 0)
    end = engine.raw.end
    start, marks, block = at, 0, _BLOCK_BYTES
    while at < end:
        try:
            views = engine.raw.read(at, block, unflushed=True)
        except OffsetError:  # retention has deleted the file
            at = max(at + 1, engine.raw.min_offset)
            continue
        if not views:
            break
        records, used = marked_records(views[0], _MARK_NAME, at)
        for view in views:
            view.release()
        if used == 0:
            if block >= _FRAME_MAX:
                raise CorruptFile("the log cannot be read", path=engine.log.path, offset=at, found="no whole record")
            block *= 2
            continue
        block = _BLOCK_BYTES
        at += used
        for record in records:
            marks += _note_record(memory, *record)
        if records:
            memory.trim(records[-1][2])
    if at > start:
        _log.info(
            "%d marks of writes in %d bytes of the log; %d writes are remembered", marks, at - start, memory.writes
        )


def _note_record(
    memory: ProducerStateTable,
    begin: int,
    end: int,
    store_ms: int,
    topic: str,
    queue_id: int,
    queue_offset: int,
    properties: bytes,
) -> bool:
    pairs = decode(properties)
    if topic == ENDS_TOPIC:
        said = pairs.get(STAMP, "")
        if (end_of := ended(said)) is not None:
            memory.complete_batch(*end_of, store_ms)
        elif (name := gone(said)) is not None:
            memory.forget_topic(name)
        else:
            return False
        memory.newest_begin = begin
        return True
    mark = RowSequence.parse(pairs.get(STAMP, ""))
    if mark is None:
        return False
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        place = real_place(pairs)
        if place is None:
            return False
        topic, queue_id = place
    if topic == HALF_TOPIC or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return False  # a copy of a message that was in its topic before
    memory.note(mark, topic, queue_id, LastSequence(mark.row, mark.crc, end, queue_offset), store_ms)
    memory.newest_begin = begin
    return True


def _oldest(engine: Engine, since_ms: int) -> int:
    """Return the first offset of the first log file with records of this time or later."""
    first, end, file_bytes = engine.raw.min_offset, engine.raw.end, engine.log.file_bytes
    at = first
    while at >= 0 and at + file_bytes < end:
        following = at - at % file_bytes + file_bytes
        try:
            if engine.log.first_store_timestamp(following) >= since_ms:
                break
        except MqfastError:
            break
        at = following
    return max(at, 0)

"""Every public call of the package, each with what comes before it and what it must answer.

Room: tests. A case must make everything that it needs beforehand in ``before``: whatever ``act`` allocates may fail.
Its answer must be the same every time that it succeeds, or None.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mqfast.config import StoreConfig
from mqfast.message import Message
from mqfast.store.check.repair import repair
from mqfast.store.check.verify import verify
from mqfast.store.message_store import MessageStore
from mqfast.store.reader.column_scan import COLUMNS
from mqfast.store.reader.store_reader import StoreReader

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from laboratory import lab, open_still

__all__ = ["CASES", "Case", "Stage"]

_LOG: Final = {"mapped_file_bytes_commit_log": 8192, "mapped_file_bytes_consume_queue": 200, "max_index_num": 16}


class Stage:
    """One store on its way through a case."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.path = os.path.join(folder, "s")
        self.template = os.path.join(folder, "template")
        self.settings = settings
        self.config = StoreConfig.tiny(**{**_LOG, **settings})
        self.store: MessageStore | None = None
        self.reader: StoreReader | None = None
        self.thing: Any = None
        """What ``before`` made ready for ``act``."""
        self._names = 0

    def open(self) -> MessageStore:
        """Open the store without threads."""
        return open_still(self.path, config=self.config)

    def take(self) -> MessageStore:
        """The store, opened when it is not."""
        if self.store is None or lab(self.store).is_closed:
            self.store = self.open()
        return self.store

    @property
    def opened(self) -> MessageStore:
        """The open store."""
        assert self.store is not None
        return self.store

    def fresh(self, what: str) -> str:
        """A name that was not there before."""
        self._names += 1
        return f"{what}{self._names}"

    def fill(self, count: int = 12) -> MessageStore:
        """Some messages in two queues, with tags, keys and properties, over several files."""
        store = self.take()
        for i in range(count):
            store.put("t", b"body %d " % i * 20, i % 2, "ab"[i % 2], [f"k{i}", "all"])
            store.put("t", b"more %d" % i, 0, properties={"p": str(i)})
        store.put_many("u", [b"x" * 700] * 12)
        store.consumer_offsets.commit("g", "t", 0, 3)
        store.get("t", 0, 0)
        return store

    def keep_template(self) -> None:
        """Keep the closed (or killed) store to begin from again."""
        shutil.rmtree(self.template, ignore_errors=True)
        shutil.copytree(self.path, self.template)

    def from_template(self) -> None:
        """Put the store back as it was kept."""
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.template, self.path)

    def end(self) -> None:
        """Close what is open."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        if self.store is not None:
            self.store.close()
            self.store = None
        self.thing = None


@dataclass(frozen=True)
class Case:
    """One public call.

    before: makes the store ready, once; again: makes it ready before every call, for calls that use it up; act: the
    call; stores: how many messages a call that returned has stored; partly: a call that failed may have stored some of
    them; others: what another package raises in place of a MemoryError; compiled: it runs in our own compiled code, so
    that no block of memory may stay behind (Python itself leaves some: sorted() does where it cannot copy its list).
    """

    name: str
    before: Callable[[Stage], None]
    act: Callable[[Stage], Any]
    settings: dict[str, Any] = field(default_factory=dict)
    again: Callable[[Stage], None] | None = None
    stores: int = 0
    partly: bool = False
    others: tuple[type[Exception], ...] = ()
    compiled: bool = False


def _filled(stage: Stage) -> None:
    stage.fill()


def _nothing(stage: Stage) -> None:
    del stage


# --- open and close ---------------------------------------------------------------------------------------------------


def _make_clean(stage: Stage) -> None:
    stage.fill()
    stage.end()
    stage.keep_template()


def _make_killed(stage: Stage) -> None:
    store = stage.fill()
    store.flush()
    stage.keep_template()  # while it is open: what a killed process leaves
    for topic in ("consumequeue", "index"):
        shutil.rmtree(os.path.join(stage.template, topic))
    stage.end()


def _emptied(stage: Stage) -> None:
    stage.end()
    shutil.rmtree(stage.path, ignore_errors=True)


def _renewed(stage: Stage) -> None:
    stage.end()
    stage.from_template()


def _opened(stage: Stage) -> None:
    stage.store = open_still(stage.path, config=stage.config)


def _with_settings(stage: Stage) -> None:
    stage.store = open_still(stage.path, mappedFileSizeCommitLog=8192, mappedFileSizeConsumeQueue=200, maxIndexNum=16)


def _reopened(stage: Stage) -> None:
    _renewed(stage)
    stage.take().put("t", b"one more")


def _closed(stage: Stage) -> None:
    stage.opened.close()


# --- put --------------------------------------------------------------------------------------------------------------


def _bodies(stage: Stage) -> None:
    stage.fill()
    stage.thing = [b"many %d" % i * 20 for i in range(40)]


def _messages(stage: Stage) -> None:
    stage.fill()
    stage.thing = [Message("t", b"batch %d" % i * 9, i % 2, "a", f"k{i}") for i in range(9)]


def _producer(stage: Stage) -> None:
    stage.thing = stage.fill().producer("t", 1, "a")


def _waited(stage: Stage) -> Any:
    told: list[object] = []
    ticket = stage.opened.put_nowait("t", b"later", keys="n")
    ticket.add_done_callback(told.append)
    return ticket.wait(5.0), ticket.done(), ticket.result.message_id != ""


def _views(stage: Stage) -> None:
    stage.fill()
    stage.thing = [bytearray(b"changes %d" % i) for i in range(20)]


def _light(stage: Stage) -> None:
    stage.fill()
    stage.thing = Message("t", b"light", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})


def _batch_topic(stage: Stage) -> None:
    store = stage.take()
    store.topic_table.ensure("B", 1, attributes={"queue.type": "BatchCQ"})
    stage.thing = Message("B", b"inner", sys_flag=0x80, properties={"INNER_NUM": "3"})


def _put(body: bytes | bytearray, *args: Any, **options: Any) -> Callable[[Stage], Any]:
    def act(stage: Stage) -> Any:
        return stage.opened.put("t", body, *args, **options)

    return act


_KEYS: Final = ["one", "two", "three"]
_PROPERTIES: Final = {"colour": "green", "n": "7"}

# --- get --------------------------------------------------------------------------------------------------------------


def _result(stage: Stage) -> None:
    stage.thing = stage.fill().get("t", 0, 0)


def _of_message(message: Any) -> tuple[Any, ...]:
    return (
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        message.tags,
        tuple(message.keys),
        dict(message.properties),
        message.born_host,
        message.store_host,
        len(message.message_id),
        bytes(message.body),
    )


def _iterated(stage: Stage) -> Any:
    return [_of_message(message) for message in stage.thing]


def _arrow_stream(stage: Stage) -> Any:
    """As a consumer in C reads it."""
    result, consume = stage.thing
    cells = consume(result.__arrow_c_stream__())
    if cells < 0:
        raise MemoryError
    return cells


def _stream(stage: Stage) -> None:
    consume = ctypes.PyDLL(None).fail_consume
    consume.restype = ctypes.c_long
    consume.argtypes = [ctypes.py_object]
    stage.thing = (stage.fill().get("t", 0, 0), consume)


def _look(stage: Stage) -> Any:
    store, offset = stage.thing
    message = store.get_by_offset(offset)
    return _of_message(message), store.get_by_offset(message.message_id).physical_offset


def _first_offset(stage: Stage) -> None:
    store = stage.fill()
    stage.thing = (store, store.get("t", 0, 2)[0].physical_offset)


def _times(stage: Stage) -> None:
    store = stage.fill()
    stage.thing = (store, store.get("t", 0, 2)[0].store_timestamp)


def _offset_by_time(stage: Stage) -> Any:
    store, when = stage.thing
    return store.offset_by_time("t", 0, 0), store.offset_by_time("t", 0, when, "UPPER") >= 2


def _bounds(stage: Stage) -> Any:
    store = stage.opened
    return (
        store.topics(),
        store.queue_ids("t"),
        store.queues(),
        store.min_offset("t", 0),
        store.max_offset("t", 0),
        store.min_physical_offset,
        store.max_physical_offset,
    )


def _undispatched(stage: Stage) -> None:
    """Records with keys that no get has asked for yet; enough to fill a queue file and an index file."""
    store = stage.take()
    for i in range(9):
        store.put(f"v{i % 3}", b"waits", keys=[f"w{i}", f"x{i}"])
    assert store.log.dispatched < store.log.written


def _dispatched(stage: Stage) -> Any:
    store = stage.opened
    return [len(store.get(f"v{i}", 0, max(0, store.max_offset(f"v{i}", 0) - 3))) for i in range(3)]


def _get_forgotten(stage: Stage) -> Any:
    found = stage.opened.get("t", 0, 0, tags="a || c")
    return [m.queue_offset for m in found], str(found.status), found.next_offset, found.total_bytes


def _consumer(stage: Stage) -> Any:
    """A member of a group from its making to its commit."""
    store = stage.opened
    consumer = store.consumer("h", "t", tags="a")
    consumer.seek(0, 0)
    consumer.seek(1, 0)
    got = [m.queue_offset for m in consumer]
    got.append(consumer.lag())
    consumer.sync()
    return got, store.consumer_offsets.get("h", "t", 0)


# --- the rest of a store ----------------------------------------------------------------------------------------------


def _topic_to_delete(stage: Stage) -> None:
    store = stage.take()
    store.put_many("gone", [b"to delete" * 20] * 12)
    store.put("gone", b"other queue", 3)
    store.consumer_offsets.commit("g", "gone", 0, 2)
    store.get("gone", 0, 0)


def _deleted(stage: Stage) -> Any:
    stage.opened.delete_topic("gone")
    return "gone" in stage.opened.topics()


def _stats(stage: Stage) -> Any:
    return sorted(stage.opened.stats())


def _unflushed(stage: Stage) -> None:
    stage.take().put("t", b"to be flushed")


def _much(stage: Stage) -> None:
    store = stage.take()
    for _ in range(24):
        store.put("t", bytes(900))
    store.flush()
    store.get("t", 0, 0)


def _retained(stage: Stage) -> Any:
    store = stage.opened
    store.retention.run_once(store.os_api.now_ms() + 3_600_000)
    return store.stats()["log_files"] <= 4


# --- the reader -------------------------------------------------------------------------------------------------------


def _closed_store(stage: Stage) -> None:
    stage.fill()
    stage.end()


def _reader(stage: Stage) -> None:
    _closed_store(stage)
    stage.reader = StoreReader(stage.path, config=stage.config)


def _open_reader(stage: Stage) -> Any:
    with StoreReader(stage.path, config=stage.config) as reader:
        return reader.log_range(), reader.topics()


def _read(stage: Stage) -> Any:
    reader = stage.reader
    assert reader is not None
    found = reader.get("t", 0, 0, tags="a")
    return [_of_message(message) for message in found], found.bodies(), found.next_offset


def _scanned(stage: Stage) -> Any:
    reader = stage.reader
    assert reader is not None
    last = [message.physical_offset for message in reader.scan()][-1]
    return _of_message(reader.get_by_offset(last)), [m.queue_offset for m in reader.messages("t", 1)]


def _in_columns(stage: Stage) -> Any:
    reader = stage.reader
    assert reader is not None
    names = [name for name in COLUMNS if name != "crc_ok"]
    batches = [*reader.scan_columns(columns=names), *reader.queue_columns("t", 1, columns=names)]
    return [(len(batch), len(batch.__arrow_c_array__())) for batch in batches]


def _searched(stage: Stage) -> Any:
    reader = stage.reader
    assert reader is not None
    reader.refresh()
    return (
        [_of_message(message) for message in reader.query("t", "k3")],
        reader.offset_by_time("t", 0, 0),
        reader.earliest_message_time > 0,
        list(reader.queues()),
        reader.is_dirty,
        reader.consumer_offsets("g"),
        reader.checkpoint.physic_msg_timestamp > 0,
    )


def _verified(stage: Stage) -> Any:
    report = verify(stage.path, config=stage.config)
    return report.ok, str(report.state), len(report.damages), bool(report.to_json()), bool(report.damage_map())


def _damaged(stage: Stage) -> None:
    stage.fill()
    stage.end()
    log = os.path.join(stage.path, "commitlog", "0" * 20)
    with open(log, "r+b") as file:
        file.seek(6000)
        file.write(b"damage" * 30)
    stage.keep_template()


def _taken_back(stage: Stage) -> None:
    shutil.rmtree(stage.path, ignore_errors=True)
    shutil.copytree(stage.template, stage.path)


def _repaired(stage: Stage) -> Any:
    report = repair(stage.path, config=stage.config)
    return report.cut_at, report.messages_lost, len(report.actions)


_POOL: Final = {"transient_store_pool_enable": True}
_SYNC: Final = {"flush_disk_type": "SYNC_FLUSH"}
_LMQ: Final = {"enable_lmq": True, "enable_multi_dispatch": True}

CASES: Final[Sequence[Case]] = (
    Case("open-new", _nothing, _opened, again=_emptied),
    Case("open-settings", _nothing, _with_settings, again=_emptied),
    Case("open-clean", _make_clean, _opened, again=_renewed),
    Case("open-killed", _make_killed, _opened, again=_renewed),
    Case("open-pool", _make_killed, _opened, _POOL, again=_renewed),
    Case("close", _make_clean, _closed, again=_reopened),
    Case("close-pool", _make_clean, _closed, _POOL, again=_reopened),
    Case("close-sync", _make_clean, _closed, _SYNC, again=_reopened),
    Case("put", _filled, _put(b"a body", 0, "a"), stores=1),
    Case("put-new-topic", _filled, lambda stage: stage.opened.put(stage.fresh("topic"), b"new"), stores=1),
    Case("put-keys", _filled, _put(b"a body", 0, "a", _KEYS), stores=1),
    Case("put-bytearray", _filled, _put(bytearray(b"changes")), stores=1),
    Case("put-properties", _filled, _put(b"a body", 1, "a", "k", _PROPERTIES, flag=3, born_host="1.2.3.4:5"), stores=1),
    Case("put-crc", _filled, _put(b"a body", 1, "a"), {"enabled_append_prop_crc": True}, stores=1),
    Case("put-roll", _filled, _put(b"r" * 5000), stores=1),
    Case("put-sync", _filled, _put(b"s" * 2500), _SYNC, stores=1),
    Case("put-pool", _filled, _put(b"p" * 2500), _POOL, stores=1),
    Case("put-message", _filled, lambda stage: stage.opened.put_message(Message("t", b"m", keys="mk")), stores=1),
    Case("put-light", _light, lambda stage: stage.opened.put_message(stage.thing), _LMQ, stores=1),
    Case("put-inner-batch", _batch_topic, lambda stage: stage.opened.put_message(stage.thing), stores=1),
    Case("put-nowait", _filled, lambda stage: stage.opened.put_nowait("t", b"later", keys="n"), stores=1),
    Case("put-nowait-wait", _filled, _waited, stores=1, partly=True),
    Case("put-many", _bodies, lambda stage: stage.opened.put_many("t", stage.thing), stores=40, partly=True),
    Case("put-many-bytearrays", _views, lambda stage: stage.opened.put_many("t", stage.thing), stores=20, partly=True),
    Case(
        "put-many-sync", _bodies, lambda stage: stage.opened.put_many("t", stage.thing), _SYNC, stores=40, partly=True
    ),
    Case("put-batch", _messages, lambda stage: stage.opened.put_batch(stage.thing), stores=9),
    Case("producer", _filled, lambda stage: repr(stage.opened.producer("t", 1, "b"))),
    Case("producer-put", _producer, lambda stage: stage.thing.put(b"through it"), stores=1),
    Case("producer-put-key", _producer, lambda stage: stage.thing.put(b"through it", "key"), stores=1),
    Case("producer-put-many", _producer, lambda stage: stage.thing.put_many([b"1", b"2"]), stores=2, partly=True),
    Case("get", _filled, lambda stage: len(stage.opened.get("t", 0, 0)), compiled=True),
    Case("get-tags", _filled, _get_forgotten, compiled=True),
    Case("get-dispatch", _filled, _dispatched, again=_undispatched),
    Case("get-dispatch-light", _light, _dispatched, _LMQ, again=_undispatched),
    Case("iterate", _result, _iterated, compiled=True),
    Case("bodies", _result, lambda stage: (stage.thing.bodies(), stage.thing[1:3][0].body.nbytes), compiled=True),
    Case("to-numpy", _result, lambda stage: len(stage.thing.to_numpy()), others=(TypeError,)),
    Case("arrow-array", _result, lambda stage: len(stage.thing.__arrow_c_array__()), compiled=True),
    Case("arrow-schema", _result, lambda stage: stage.thing.__arrow_c_schema__() is not None, compiled=True),
    Case("arrow-stream", _stream, _arrow_stream, others=(ctypes.ArgumentError,), compiled=True),
    Case("look", _first_offset, _look, compiled=True),
    Case("query", _filled, lambda stage: [_of_message(message) for message in stage.opened.query("t", "k3")]),
    Case("offset-by-time", _times, _offset_by_time),
    Case("bounds", _filled, _bounds),
    Case("consumer", _filled, _consumer),
    Case("delete-topic", _filled, _deleted, again=_topic_to_delete),
    Case("flush", _filled, lambda stage: stage.opened.flush(), again=_unflushed, compiled=True),
    Case("flush-pool", _filled, lambda stage: stage.opened.flush(5.0), _POOL, again=_unflushed),
    Case("stats", _filled, _stats),
    Case("retention", _filled, _retained, {"retention_bytes": 16384}, again=_much),
    Case("reader", _closed_store, _open_reader),
    Case("reader-get", _reader, _read),
    Case("reader-scan", _reader, _scanned),
    Case("reader-columns", _reader, _in_columns),
    Case("reader-search", _reader, _searched),
    # One log file: Python's thread pools do not survive a lack of memory.
    Case("verify", _closed_store, _verified, {"mapped_file_bytes_commit_log": 1 << 16}),
    Case("repair", _damaged, _repaired, {"mapped_file_bytes_commit_log": 1 << 16}, again=_taken_back),
)

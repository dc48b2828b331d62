"""The put path at its edges: sizes, refusals, bodies of every kind, threads, tickets, rolls, the pool.

Formats: ``mqfast/store/FORMAT.md``; bytes are compared in test_byte_equality.py.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_checks import read_queue
from laboratory import bodies, lab, open_still
from other_thread import in_another_thread
from store.small_store import (
    SMALL,
    in_threads,
)

import mqfast
from mqfast import Message
from mqfast.errors import (
    MessageIllegal,
    MessageTooLarge,
    PageCacheBusy,
    PropertiesTooLong,
    StoreForked,
    TopicTooLong,
)

SYNC = {"flushDiskType": "SYNC_FLUSH"}
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 3}
WAYS: dict[str, Callable[[Any, bytes], Any]] = {
    "put": lambda store, body: store.put("T", body),
    "producer": lambda store, body: store.producer("T").put(body),
    "general": lambda store, body: store.put("T", body, flag=1),
    "many": lambda store, body: store.put_many("T", [body])[0],
    "batch": lambda store, body: store.put_batch([Message("T", body)])[0],
    "nowait": lambda store, body: store.put_nowait("T", body).result,
}


# --- sizes and refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("left", [9, 8, 7, 0])
def test_a_record_leaves_eight_bytes_in_its_file_or_goes_to_the_next(tmp_path: Path, way: str, left: int) -> None:
    put = WAYS[way]
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        first = put(store, b"a" * 900)
        room = 4096 - first.size - left
        second = put(store, b"b" * (room - (first.size - 900)))
        assert second.size == room
        assert second.physical_offset == (first.size if left >= 8 else 4096)
        third = put(store, b"c")
        assert third.physical_offset == (4096 if left >= 8 else 4096 + room)
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert [body[:1] for body in bodies(store)] == [b"a", b"b", b"c"]


REFUSALS: list[tuple[type[Exception], Callable[[Any], Any]]] = [
    (MessageTooLarge, lambda s: s.put("T", bytes(3001))),
    (MessageTooLarge, lambda s: s.put("T", bytes(3001), flag=1)),
    (MessageTooLarge, lambda s: s.put_many("T", [b"x", bytes(3001)])),
    (MessageTooLarge, lambda s: s.put_batch([Message("T", b"x"), Message("T", bytes(3001))])),
    (MessageTooLarge, lambda s: s.put_batch([Message("T", bytes(2000)), Message("U", bytes(2000))])),
    (MessageTooLarge, lambda s: s.put_nowait("T", bytes(3001))),
    (PropertiesTooLong, lambda s: s.put("T", b"", keys="k" * 32763)),
    (PropertiesTooLong, lambda s: s.put("T", b"", tags="t", keys="k" * 32757)),
    (PropertiesTooLong, lambda s: s.put("T", b"", properties={"p": "v" * 32765})),
    (PropertiesTooLong, lambda s: s.put("T", b"", tags="t" * 32763)),
    (TopicTooLong, lambda s: s.put("t" * 128, b"")),
    (TopicTooLong, lambda s: s.put_many("t" * 128, [b""])),
    (TopicTooLong, lambda s: s.producer("t" * 128)),
    (TopicTooLong, lambda s: s.put_batch([Message("t" * 128, b"")])),
    (MessageIllegal, lambda s: s.put("", b"")),
    (MessageIllegal, lambda s: s.put("..", b"")),
    (MessageIllegal, lambda s: s.put("a/b", b"")),
    (MessageIllegal, lambda s: s.put("a\0b", b"")),
    (MessageIllegal, lambda s: s.put("\ud800", b"")),
    (MessageIllegal, lambda s: s.put(None, b"")),
    (MessageIllegal, lambda s: s.put(b"T", b"")),
    (MessageIllegal, lambda s: s.put("T", None)),
    (MessageIllegal, lambda s: s.put("T", "text")),
    (MessageIllegal, lambda s: s.put("T", 5)),
    (MessageIllegal, lambda s: s.put("T", None, flag=1)),
    (MessageIllegal, lambda s: s.put_many("T", [b"x", None])),
    (MessageIllegal, lambda s: s.put_batch([Message("T", b"x"), Message("T", None)])),  # type: ignore[arg-type]
    (MessageIllegal, lambda s: s.put("T", memoryview(bytes(100))[::2])),
    (MessageIllegal, lambda s: s.put_many("T", [memoryview(bytes(100))[::2]])),
    (MessageIllegal, lambda s: s.put("T", memoryview(bytes(100))[::2], flag=1)),
    (MessageIllegal, lambda s: s.put("T", b"", -1)),
    (MessageIllegal, lambda s: s.put("T", b"", 1 << 31)),
    (MessageIllegal, lambda s: s.put("T", b"", -1, flag=1)),
    (MessageIllegal, lambda s: s.put_many("T", [b""], 1 << 40)),
    (MessageIllegal, lambda s: s.put_batch([Message("T", b"", 1 << 31)])),
    (MessageIllegal, lambda s: s.put("T", b"", tags="a\x01b")),
    (MessageIllegal, lambda s: s.put("T", b"", keys="a\x02b")),
    (MessageIllegal, lambda s: s.put("T", b"", tags=5)),
    (MessageIllegal, lambda s: s.put("T", b"", properties={"a": "b\x02"})),
    (MessageIllegal, lambda s: s.put("T", b"", properties={"a": 1.5})),
    (MessageIllegal, lambda s: s.put("T", b"", properties="a")),
    (MessageIllegal, lambda s: s.put("T", b"", tags="x", properties={"TAGS": "y"})),
    (MessageIllegal, lambda s: s.put("T", b"", tags="x", properties=b"a\x01b\x02")),
    (MessageIllegal, lambda s: s.put("T", b"", born_host="nowhere")),
    (MessageIllegal, lambda s: s.put("T", b"", store_host=b"123")),
    (MessageIllegal, lambda s: s.put("T", b"", sys_flag=0x80)),
    (MessageIllegal, lambda s: s.put("T", b"", sys_flag=0x80, properties={"INNER_NUM": "2"})),
    (MessageIllegal, lambda s: s.put_batch([Message("T", b""), Message("T", b"", sys_flag=4)])),
    (MessageIllegal, lambda s: s.producer("T").put(b"", 5)),
]


@pytest.mark.parametrize("number", range(len(REFUSALS)))
def test_what_is_refused_leaves_no_byte(tmp_path: Path, number: int) -> None:
    kind, call = REFUSALS[number]
    with mqfast.open(tmp_path / "store", maxMessageSize=3000, **SMALL) as store:
        store.put("T", b"before")
        before, stats = log_of(tmp_path / "store"), store.stats()
        with pytest.raises(kind):
            call(store)
        assert log_of(tmp_path / "store") == before
        after = store.stats()
        assert (after["puts"], after["written_offset"]) == (stats["puts"], stats["written_offset"])
        assert store.put("T", b"after").queue_offset == 1
        assert bodies(store) == [b"before", b"after"]
        assert store.topics() == ["T"]


def log_of(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir())).rstrip(b"\0")


def test_nothing_to_put_is_no_error(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert len(store.put_many("T", [])) == len(store.put_batch([])) == 0
        assert store.put("T", b"").size == 92
        assert bodies(store) == [b""]


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_bodies_of_every_kind(tmp_path: Path, way: str) -> None:
    numpy = pytest.importorskip("numpy")
    text = bytes(range(48))
    kinds = [
        text,
        bytearray(text),
        memoryview(text),
        memoryview(b"x" + text + b"y")[1:-1],
        memoryview(text).cast("I"),
        array.array("q", text),
        numpy.frombuffer(text, dtype="<u2"),
        numpy.frombuffer(text, dtype="u1").reshape(6, 8),
    ]
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for body in kinds:
            WAYS[way](store, body)  # type: ignore[arg-type]
        kinds[1][0] = 99  # type: ignore[index]  # the caller's own again
        kinds[1].extend(b"not exported any more")  # type: ignore[union-attr]
        assert bodies(store) == [text] * len(kinds)
        assert all(message.check_crc() for message in read_queue(store, "T", 0, 0))


def test_a_body_that_changes_while_it_is_put_has_the_checksum_of_what_was_stored(tmp_path: Path) -> None:
    body = bytearray(200_000)
    done = threading.Event()

    def scribble() -> None:
        while not done.is_set():
            for i in range(0, len(body), 4099):
                body[i] = (body[i] + 1) & 0xFF

    scribbler = threading.Thread(target=scribble)
    with mqfast.open(tmp_path / "store", mappedFileSizeCommitLog=1 << 20) as store:
        scribbler.start()
        try:
            for _ in range(20):
                store.put_many("T", [body] * 3)
                store.put("T", body, flag=1)
        finally:
            done.set()
            scribbler.join()
        assert all(message.check_crc() for message in read_queue(store, "T", 0, 0))
        killed = shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with mqfast.open(killed) as store:
        assert store.max_offset("T", 0) == 80


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, POOL, {"dispatch": "background"}], ids=["mapping", "pool", "background"])
def test_eight_threads_leave_no_hole_and_no_repeat(tmp_path: Path, settings: dict[str, Any]) -> None:
    sizes = SMALL | {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000}
    answers: dict[int, list[tuple[Any, bytes]]] = defaultdict(list)

    def work(number: int) -> None:
        producer = store.producer("T", number % 2)
        for i in range(60):
            name = b"%d.%d" % (number, i)
            if i % 3 == 0:
                answers[number].append((producer.put(name + b".p", f"k{number}"), name + b".p"))
            elif i % 3 == 1:
                given = [name + b".%d" % j for j in range(7)]
                answers[number] += zip(store.put_many("T", given, number % 2), given, strict=True)
            else:
                given = [name + b".b%d" % j for j in range(3)]
                batch = [Message("T", body, number % 2, keys="batch") for body in given]
                answers[number] += zip(store.put_batch(batch), given, strict=True)
            if i % 10 == 0:
                store.get("T", number % 2, 0)

    with mqfast.open(tmp_path / "store", **sizes | settings) as store:
        in_threads(8, work)
        store.flush()
        total = 8 * 20 * (1 + 7 + 3)
    for _ in range(2):
        with mqfast.open(tmp_path / "store", **sizes | settings) as store:
            assert store.max_offset("T", 0) + store.max_offset("T", 1) == total
            for queue_id in (0, 1):
                found = list(read_queue(store, "T", queue_id, 0))
                assert [m.record_queue_offset for m in found] == list(range(total // 2))
                by_offset = {m.queue_offset: (m.physical_offset, bytes(m.body)) for m in found}
                for number in range(queue_id, 8, 2):
                    mine = answers[number]
                    assert [r.queue_offset for r, _ in mine] == sorted(r.queue_offset for r, _ in mine)
                    assert all(by_offset[r.queue_offset] == (r.physical_offset, body) for r, body in mine)
            assert len(store.query("T", "k3", 64)) == 20


@pytest.mark.parametrize("settings", [{}, POOL], ids=["mapping", "pool"])
def test_sixteen_threads_with_sync_flush(tmp_path: Path, settings: dict[str, Any]) -> None:
    sizes = SMALL | SYNC | settings | {"mappedFileSizeCommitLog": 1 << 15}
    late = []

    def work(number: int) -> None:
        for i in range(25):
            result = store.put("T", b"%d.%d" % (number, i) * 20, number % 4)
            if store.stats()["flushed_offset"] < result.physical_offset + result.size:
                late.append(result)
            assert result.status.name == "PUT_OK"

    with mqfast.open(tmp_path / "store", **sizes) as store:
        in_threads(16, work)
        assert late == []
        stats = store.stats()
        assert stats["flush_behind_bytes"] == 0
        assert stats["sync_calls"] < 16 * 25 + 40  # waiting threads share a sync, and a roll needs a few more
    with mqfast.open(tmp_path / "store", **sizes) as store:
        assert sum(store.max_offset("T", i) for i in range(4)) == 400
        for queue_id in range(4):
            for number in range(queue_id, 16, 4):
                own = [body for body in bodies(store, "T", queue_id) if body.startswith(b"%d." % number)]
                assert own == [b"%d.%d" % (number, i) * 20 for i in range(25)]


# --- tickets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [SYNC, {}, SYNC | POOL], ids=["sync", "async", "sync-pool"])
def test_tickets(tmp_path: Path, settings: dict[str, Any]) -> None:
    called: list[Any] = []
    all_called = threading.Event()

    def note(ticket: Any) -> None:
        called.append(ticket)
        if len(called) == 30:
            all_called.set()

    with mqfast.open(tmp_path / "store", **SMALL | settings) as store:
        tickets = [store.put_nowait("T", b"%d" % i * 100, tags="a", keys=f"k{i}") for i in range(30)]
        for ticket in tickets:
            ticket.add_done_callback(note)
        assert all_called.wait(20)
        assert set(called) == set(tickets)
        for i, ticket in enumerate(tickets):
            assert ticket.done()
            assert ticket.wait(0)
            assert ticket.error is None
            assert ticket.result.queue_offset == i
            ticket.add_done_callback(called.append)  # at once
        assert len(called) == 60
        assert bodies(store) == [b"%d" % i * 100 for i in range(30)]


def test_a_failing_ticket_callback_does_not_stop_the_others(tmp_path: Path) -> None:
    done = threading.Event()

    def fail(_: Any) -> None:
        raise RuntimeError("of a user")

    with mqfast.open(tmp_path / "store", **SMALL | SYNC) as store:
        with lab(store).dispatcher.locked():

            def put() -> None:
                store.put_nowait("T", b"x").add_done_callback(fail)
                store.put_nowait("T", b"y").add_done_callback(lambda _: done.set())

            in_another_thread(put)
        assert done.wait(20)
        assert store.put("T", b"z").status.name == "PUT_OK"


def test_close_finishes_open_tickets(tmp_path: Path) -> None:
    called = []
    store = mqfast.open(tmp_path / "store", **SMALL | {"flushIntervalCommitLog": 60000})
    ticket = store.put_nowait("T", b"x")
    ticket.add_done_callback(called.append)
    store.close()
    assert called == [ticket]
    assert ticket.done()
    assert ticket.error is None


@pytest.mark.parametrize("settings", [SYNC, {}], ids=["sync", "async"])
def test_aput(tmp_path: Path, settings: dict[str, Any]) -> None:
    async def put_all(store: Any) -> list[Any]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        results = await asyncio.gather(*(store.aput("T", b"%d" % i, i % 2, keys="k") for i in range(40)))
        ticking.cancel()
        assert ticks > 0
        with pytest.raises(MessageIllegal):
            await store.aput("", b"")
        return list(results)

    with mqfast.open(tmp_path / "store", **SMALL | settings) as store:
        results = asyncio.run(put_all(store))
        assert {result.status.name for result in results} == {"PUT_OK"}
        if settings:
            assert store.stats()["flushed_offset"] >= max(r.physical_offset + r.size for r in results)
        assert len(bodies(store, "T", 0)) == len(bodies(store, "T", 1)) == 20


# --- rolls, pool, kill ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, SYNC, POOL, POOL | SYNC], ids=["async", "sync", "pool", "pool-sync"])
def test_the_whole_matrix_rolls_closes_and_reopens(tmp_path: Path, settings: dict[str, Any]) -> None:
    given = [b"%03d" % i * 100 for i in range(100)]
    with mqfast.open(tmp_path / "store", **SMALL | settings) as store:
        results = list(store.put_many("T", given[:60]))
        results += [store.put("T", body, keys="k") for body in given[60:80]]
        for i in range(80, 100, 4):
            results += store.put_batch([Message("T", body) for body in given[i : i + 4]])
        assert [result.queue_offset for result in results] == list(range(100))
        assert len({result.physical_offset // 4096 for result in results}) > 8
        assert bodies(store) == given
        assert store.get_by_offset(results[77].message_id).queue_offset == 77
    with mqfast.open(tmp_path / "store", **SMALL | settings) as store:
        assert store.recovery.clean
        assert bodies(store) == given
        assert len(store.query("T", "k", 64)) == 20


@pytest.mark.parametrize("settings", [{}, SYNC, POOL, POOL | SYNC], ids=["async", "sync", "pool", "pool-sync"])
def test_a_kill_keeps_what_was_promised(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Mapping: every put. Pool: what was committed, which with sync flush is every put."""
    program = (
        "import json, os, signal, sys, mqfast\n"
        "settings = json.loads(sys.argv[2])\n"
        "store = mqfast.open(sys.argv[1], **settings)\n"
        "for i in range(150):\n"
        "    store.put('T', b'%03d' % i * 50, keys=f'k{i}')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    all_settings = SMALL | settings
    command = [sys.executable, "-c", program, str(tmp_path / "store"), json.dumps(all_settings)]
    assert subprocess.run(command, check=False, timeout=300).returncode == -9
    with mqfast.open(tmp_path / "store", **all_settings) as store:
        assert not store.recovery.clean
        found = bodies(store)
        assert found == [b"%03d" % i * 50 for i in range(len(found))]
        if settings != POOL:
            assert len(found) == 150
        for i in range(0, len(found), 7):
            assert [m.queue_offset for m in store.query("T", f"k{i}")] == [i]
        assert store.put("T", b"next").queue_offset == len(found)


def test_a_long_append_is_told_to_others(tmp_path: Path) -> None:
    """One append that holds the put lock for long makes others PageCacheBusy; nothing of theirs is written."""
    huge = bytes(128 << 20)
    busy = stored = 0
    settings = {"mappedFileSizeCommitLog": 144 << 20, "maxMessageSize": 140 << 20, "osPageCacheBusyTimeOutMills": 1}
    with mqfast.open(tmp_path / "store", prefault_window_bytes=0, **settings) as store:
        store.put("T", b"first")
        thread = threading.Thread(target=store.put_many, args=("T", [huge]))
        thread.start()
        while thread.is_alive():
            time.sleep(0.003)  # who comes early waits
            try:
                store.put("Small", b"x")
                stored += 1
            except PageCacheBusy:
                busy += 1
        thread.join()
        assert busy > 0
        store.put("Small", b"last")
        assert store.max_offset("Small", 0) == stored + 1
        assert store.max_offset("T", 0) == 2
        assert store.stats()["page_cache_busy"] is False


# --- arguments of the wrong kind --------------------------------------------------------------------------------------


def test_arguments_of_the_wrong_kind_are_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    lone = "\ud800"
    many_keys: Any = 5
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        put: Any = store.put
        producer: Any = store.producer("T", tags="t")
        refusals: list[tuple[Callable[[], Any], str]] = [
            (lambda: put("T", b"", "0"), "queue_id: expected a whole number, found str"),
            (lambda: put("T", b"", 0.0), "queue_id: expected a whole number, found float"),
            (lambda: put("T", b"", -1), "queue_id: expected 0 to"),
            (lambda: put("T", b"", 1 << 31), "queue_id: expected 0 to"),
            (lambda: put("T", b"", 1 << 70), "queue_id: expected 0 to"),
            (lambda: put("T", b"", flag=1 << 31), "flag: expected"),
            (lambda: put("T", b"", born_timestamp=1 << 63), "born_timestamp: expected"),
            (lambda: put("T", b"", keys=many_keys), "keys: expected a str or several"),
            (lambda: put("T", b"", tags=7), "tags: expected str or None"),
            (lambda: put("T", b"", tags=lone), "expected text that has a UTF-8 form"),
            (lambda: put("T", b"", keys=lone), "key: expected text that has a UTF-8 form"),
            (lambda: put("T", b"", properties={"a": lone}), "properties: expected text"),
            (lambda: put("T", "text"), "body: expected a contiguous bytes-like object"),
            (lambda: put("T", "text", flag=1), "body: expected a contiguous bytes-like object"),
            (lambda: producer.put(b"", 5), "key: expected str"),
            (lambda: producer.put(b"", "a\x01b"), "key: expected text without"),
            (lambda: producer.put(b"", "a\x02b"), "key: expected text without"),
            (lambda: producer.put_many(5), "bodies: expected several"),
            (lambda: producer.put_many([b"", "text"]), "body 1: expected a contiguous bytes-like object"),
            (lambda: producer.put_many([b"", bytearray(5000)]), "body 1: expected at most"),
            (lambda: producer.put_many([b"", bytes(5000)]), "body 1: expected at most"),
            (lambda: store.put_message(5), "message: expected a Message, found int"),  # type: ignore[arg-type]
            (lambda: store.put_batch(5), "messages: expected several"),  # type: ignore[arg-type]
            (lambda: store.put_batch([Message("T", b"", sys_flag=4)]), "no transaction bits"),
            (lambda: store.put_batch([Message("T", b"", sys_flag=0x80)]), "inner batches and light queues"),
        ]
        for call, text in refusals:
            with pytest.raises(MessageIllegal, match=text):
                call()
        assert (store.log.written, store.put_count) == (0, 0)
        assert producer.put(b"", "").size > 0  # an empty key is none
        assert store.get("T", 0, 0)[0].keys == []
        assert (producer.queue_id, repr(producer)) == (0, "<BoundProducer T/0>")


def test_a_batch_names_its_messages(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        none = store.put_batch([])
        assert (len(none), none.end_offset, none.message_id) == (0, 0, "")
        batch = store.put_batch([Message("T", b"a"), Message("U", b"b")])
        assert batch.message_id == ",".join(result.message_id for result in batch)
        assert batch[-1].physical_offset == batch[1].physical_offset
        assert batch.end_offset == batch[1].physical_offset + batch[1].size
        assert repr(batch) == "<BatchResult PUT_OK 2 messages>"
        for index in (2, -3):
            with pytest.raises(IndexError):
                batch[index]


def test_long_topics_where_version_2_is_off(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", autoMessageVersionOnTopicLen=False, **SMALL) as store:
        for topic in ("T" * 128, "é" * 64):
            with pytest.raises(TopicTooLong):
                store.put(topic, b"")
        assert store.put("T" * 127, b"").queue_offset == 0


def test_a_checksum_that_the_caller_brought_is_left_out(tmp_path: Path) -> None:
    """The record gets its own, of the whole record; a second one would be found first."""
    with mqfast.open(tmp_path / "store", enabledAppendPropCRC=True, forceVerifyPropCRC=True, **SMALL) as store:
        store.put("T", b"body", properties={"a": "1", "__CRC32#": "1234567890"})
        store.put("T", b"body", properties=b"a\x011\x02x__CRC32#\x011234567890\x02")  # the end of another name
        first, second = store.get("T", 0, 0)
        assert first.properties_bytes.count(b"__CRC32#") == 1
        assert b"1234567890" not in first.properties_bytes
        assert second.properties_bytes.count(b"__CRC32#") == 2
        (tmp_path / "store" / "abort").touch()
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with mqfast.open(tmp_path / "killed", enabledAppendPropCRC=True, forceVerifyPropCRC=True) as store:
        assert bodies(store) == [b"body"] * 2


def test_a_batch_of_more_than_a_message_may_have(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", maxMessageSize=100, mappedFileSizeCommitLog=1 << 20) as store:
        with pytest.raises(MessageTooLarge, match="batch: expected at most 65636 bytes"):
            store.put_batch([Message("T", bytes(100))] * 400)
        with pytest.raises(MessageTooLarge, match="body: expected at most 100"):
            store.put_batch([Message("T", bytes(101))])
        assert store.log.written == 0


LMQ = {"enableLmq": True, "enableMultiDispatch": True}


def test_whatever_is_not_plain_goes_the_general_way(tmp_path: Path) -> None:
    """One field at a time; each is in the record."""
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        fields: list[tuple[dict[str, Any], str, Any]] = [
            ({"store_host": "10.0.0.1:7"}, "store_host", "10.0.0.1:7"),
            ({"born_host": "[::5]:8"}, "born_host", "[::5]:8"),
            ({"reconsume_times": 3}, "reconsume_times", 3),
            ({"prepared_transaction_offset": 9}, "prepared_transaction_offset", 9),
            ({"born_timestamp": 5}, "born_timestamp", 5),
            ({"sys_flag": 1 << 8}, "sys_flag", 1 << 8),
        ]
        for options, name, value in fields:
            placed = store.put("T", b"x", **options)
            assert getattr(store.get_by_offset(placed.physical_offset), name) == value
        assert store.put("T", b"x", wait_store_ok=False).status.name == "PUT_OK"
    with mqfast.open(tmp_path / "six", store_host="[::1]:10911", **SMALL) as store:
        assert store.get_by_offset(store.producer("T").put(b"x").physical_offset).store_host == "[::1]:10911"
    with mqfast.open(tmp_path / "short", autoMessageVersionOnTopicLen=False, **SMALL) as store:
        with pytest.raises(TopicTooLong):
            store.put("T" * 128, b"", flag=1)
        with pytest.raises(TopicTooLong):
            store.put_batch([Message("é" * 64, b"")])


def test_a_batch_takes_no_message_of_several_queues(tmp_path: Path) -> None:
    several = Message("T", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,other"})
    with mqfast.open(tmp_path / "store", **LMQ, **SMALL) as store:
        with pytest.raises(MessageIllegal, match="light queues"):
            store.put_batch([several])
        for number in range(3):
            placed = store.put_message(several)
            offsets = store.get_by_offset(placed.physical_offset).properties["INNER_MULTI_QUEUE_OFFSET"]
            assert offsets == f"{number},", "only light queues count for themselves"
        assert store.max_offset("%LMQ%a", 0) == 3


class Sly(Message):
    """A message that does something else when its born host is asked for: after its queue offset was looked up."""

    @property
    def born_host(self) -> None:  # type: ignore[override]
        action = getattr(self.body, "action", None)
        if action is not None:
            self.body.action = None  # type: ignore[union-attr]
            action()

    @born_host.setter
    def born_host(self, value: object) -> None:
        pass


class Body(bytearray):
    """A body with an errand."""

    action: Callable[[], Any] | None = None


@pytest.mark.parametrize("errand", ["put", "delete"])
def test_a_light_put_that_another_thread_overtakes_begins_again(tmp_path: Path, errand: str) -> None:
    """Its properties name queue offsets: they are made anew when the queue moved or was deleted meanwhile."""
    with open_still(tmp_path / "store", **LMQ, **SMALL) as store:
        store.put("T", b"before")
        body = Body(b"slow")

        def overtake() -> None:
            in_another_thread(lambda: store.put("T", b"quick") if errand == "put" else store.delete_topic("T"))

        body.action = overtake
        slow = Sly("T", body, properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        placed = store.put_message(slow)
        assert body.action is None
        assert placed.queue_offset == (2 if errand == "put" else 0)
        assert bodies(store) == ([b"before", b"quick", b"slow"] if errand == "put" else [b"slow"])
        assert bodies(store, "%LMQ%a") == [b"slow"]


def test_a_plain_put_whose_topic_is_deleted_meanwhile(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **SMALL) as store:
        store.put("T", b"before")
        body = Body(b"slow")
        body.action = lambda: store.delete_topic("T")
        assert store.put_message(Sly("T", body)).queue_offset == 0
        assert bodies(store) == [b"slow"]


def test_more_pairs_of_queue_and_tags_than_are_remembered(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", mappedFileSizeCommitLog=16 << 20, mappedFileSizeConsumeQueue=2 << 20) as store:
        for number in range(65536 + 2):
            store.put("T", b"", tags=str(number))
        assert store.max_offset("T", 0) == 65538
        assert store.get("T", 0, 65537)[0].tags == "65537"


def test_every_callback_of_a_ticket_is_called(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", flush_interval_ms_commit_log=600_000, **SMALL) as store:
        ticket = store.put_nowait("T", b"x")
        called: list[int] = []
        all_called = threading.Event()
        for number in range(3):
            ticket.add_done_callback(lambda _, number=number: called.append(number))
        ticket.add_done_callback(lambda _: all_called.set())
        assert all_called.wait(30)
        assert called == [0, 1, 2]
        ticket.add_done_callback(lambda _: called.append(3))  # it is done: at once
        assert called == [0, 1, 2, 3]


def test_what_the_callers_iterators_raise_is_theirs(tmp_path: Path) -> None:
    def broken() -> Any:
        yield "a"
        raise LookupError("mine")

    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for call in (
            lambda: store.put_batch(broken()),
            lambda: store.put_many("T", broken()),
            lambda: store.put("T", b"", keys=broken()),
        ):
            with pytest.raises(LookupError, match="mine"):
                call()
        assert store.put_count == 0


def test_a_message_to_light_queues_is_durable_with_sync_flush(tmp_path: Path) -> None:
    settings = {**SMALL, "flushDiskType": "SYNC_FLUSH", "enableMultiDispatch": True, "enableLmq": True}
    with mqfast.open(tmp_path / "store", **settings) as store:
        for number in range(3):
            placed = store.put("T", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
            assert placed.status is mqfast.PutMessageStatus.PUT_OK
            assert store.log.flushed >= placed.physical_offset + placed.size
            assert [message.queue_offset for message in store.get("%LMQ%b", 0, number)] == [number]


def test_a_referenced_put_result_is_not_reused(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        producer = store.producer("T", 0, "A")
        ways = (producer.put, lambda body: store.put("T", body, tags="A"), lambda body: store.put("T", body, keys="k"))
        kept = [put(b"x" * number) for number in range(20) for put in ways]
        offsets = [result.queue_offset for result in kept]
        assert offsets == list(range(60))
        assert [result.physical_offset for result in kept] == sorted({result.physical_offset for result in kept})
        del kept[::2]  # what nobody has is free, what lies between is not
        producer.put(b"y")
        assert [result.queue_offset for result in kept] == offsets[1::2]


def test_results_of_one_producer_in_many_threads(tmp_path: Path) -> None:
    """With sync flush each of them waits inside of its put, while the others come in."""
    found: list[int] = []
    with mqfast.open(tmp_path / "store", **SMALL, **SYNC) as store:
        producer = store.producer("T")

        def work(number: int) -> None:
            for _ in range(20):
                result = producer.put(b"%d" % number)
                assert bytes(store.get("T", 0, result.queue_offset, 1)[0].body) == b"%d" % number
                found.append(result.queue_offset)

        in_threads(8, work)
    assert sorted(found) == list(range(160))


def test_a_child_of_a_fork_during_an_append_raises_store_forked(tmp_path: Path) -> None:
    """A batch holds the put lock without the GIL: in the child nobody will ever let go of it."""
    with mqfast.open(tmp_path / "store", mappedFileSizeCommitLog=1 << 20) as store:
        producer, stop = store.producer("T"), threading.Event()

        def batches() -> None:
            bodies = [b"x" * 60_000] * 100
            while not stop.is_set():
                store.put_many("T", bodies)

        thread = threading.Thread(target=batches)
        thread.start()
        try:
            outcomes = []
            for _ in range(30):
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    try:
                        producer.put(b"x")
                        os._exit(1)
                    except StoreForked:
                        os._exit(0)
                    except BaseException:
                        os._exit(2)
                outcomes.append(os.waitpid(child, 0)[1])
        finally:
            stop.set()
            thread.join()
    assert outcomes == [0] * 30


def test_a_message_with_a_text_and_a_key_is_stored_as_bytes_and_properties(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put_message(Message("T", "h\u00e9", sharding_key="customer-7", delay_level=3))
        store.put_batch([Message("T", "one"), Message("T", b"two", delay_s=1.5)])
        found = list(store.get("T", 0, 0))
        assert [bytes(message.body) for message in found] == [b"h\xc3\xa9", b"one", b"two"]
        assert found[0].properties == {"__SHARDINGKEY": "customer-7", "DELAY": "3"}
        assert found[2].properties == {"TIMER_DELAY_MS": "1500"}
        with pytest.raises(MessageIllegal, match="UTF-8"):
            store.put_message(Message("T", "\ud800"))

"""The puts of the engine interface: fields that are ready bytes, a client's batch body, stored records put once more.

What they store is compared byte by byte with what ``put_message`` stores of the same fields.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import open_still

import mqfast
from mqfast import Message, properties
from mqfast.errors import (
    CorruptFile,
    MessageIllegal,
    MessageTooLarge,
    NotMaster,
    OffsetError,
    PropertiesTooLong,
    StoreClosed,
    TopicTooLong,
)
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.results import PutMessageStatus

NOW = 1_750_000_000_000
V4 = bytes([10, 1, 2, 3, 0, 0, 0x15, 0xB3])
V6 = bytes(range(16)) + bytes([0, 0, 0x2A, 0x9F])
SMALL = {
    "mappedFileSizeCommitLog": 32 << 10,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 200,
}
LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}
HALF, COMMIT, ROLLBACK = 0x4, 0x8, 0xC


def opened(path: Path | str, **given: Any) -> mqfast.MessageStore:
    os_api = OsApi()
    os_api.fix_clock(NOW)
    return mqfast.open(path, os_api=os_api, **SMALL | given)


def log_of(store: mqfast.MessageStore) -> bytes:
    """Every byte of the log that was appended."""
    at, found = store.log.min_offset, b""
    while at < store.log.written:
        piece = store.log.read(at, min(store.log.written - at, SMALL["mappedFileSizeCommitLog"] - at % (32 << 10)))
        found += piece
        at += len(piece)
    return found


def seen(store: mqfast.MessageStore) -> list[tuple[object, ...]]:
    """What readers see of each queue."""
    return [
        (*queue, [(m.queue_offset, m.physical_offset, bytes(m.body), m.tags) for m in store.get(queue[0], queue[1], 0)])
        for queue in store.queues()
    ]


def element(body: bytes, text: bytes = b"", flag: int = 0, size: int | None = None) -> bytes:
    """One message of a client's batch body."""
    whole = struct.pack(">iiii", 0, 0, flag, len(body)) + body + struct.pack(">h", len(text)) + text
    return struct.pack(">i", len(whole) + 4 if size is None else size) + whole


# --- the same bytes as put_message ---

names = st.sampled_from(["A", "B", "%RETRY%" + "g" * 130, "topic-ü", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "BATCHES"])
texts = st.sampled_from(
    [
        b"",
        b"TAGS\x01t\x02",
        b"TAGS\x01t",
        b"KEYS\x01k1 k2\x02TAGS\x01\xe4\xb8\xad\x02",
        b"UNIQ_KEY\x01u\x02WAIT\x01false\x02",
        b"DELAY\x013\x02",
        b"a\x01b\x02__CRC32#\x011234567890\x02",
        b"INNER_MULTI_DISPATCH\x01%LMQ%a,x,%LMQ%b\x02",
        b"\x01\x02nothing",
    ]
)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
messages = st.fixed_dictionaries(
    {
        "topic": names,
        "queue_id": st.sampled_from([0, 1, 7]),
        "body": st.binary(max_size=300),
        "properties": texts,
        "flag": ints,
        "sys_flag": st.sampled_from([0, 1, HALF, COMMIT, ROLLBACK, 0x301, HALF | 1, 0x31]),
        "born_timestamp": st.one_of(st.none(), longs),
        "born_host": st.sampled_from([None, V4, V6]),
        "store_host": st.sampled_from([None, V4, V6]),
        "reconsume_times": ints,
        "prepared_transaction_offset": longs,
    }
)


@pytest.mark.parametrize("index", [False, True], ids=["no_index", "index"])
@pytest.mark.parametrize("crc", [False, True], ids=["plain", "crc_property"])
@pytest.mark.parametrize("dispatch", ["inline", "background"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(puts=st.lists(messages, min_size=1, max_size=20), buffer=st.booleans())
def test_the_same_bytes_and_units_as_a_message(
    tmp_path: Path, index: bool, crc: bool, dispatch: str, puts: list[dict[str, Any]], buffer: bool
) -> None:
    given = {"dispatch": dispatch, "enabled_append_prop_crc": crc, "message_index_enable": index, **LIGHT}
    with tempfile.TemporaryDirectory(dir=tmp_path) as place, opened(place + "/a", **given) as one:
        with opened(place + "/b", **given) as other:
            for store in (one, other):
                store.topic_table.ensure("BATCHES", 8, attributes={"queue.type": "BatchCQ"})
            result = None
            for number, fields in enumerate(puts):
                wanted = one.put_message(Message(**fields))
                fields = dict(fields, topic=fields["topic"].encode())
                if buffer:
                    fields["body"] = bytearray(fields["body"])
                result = other.engine.put_encoded(**fields, result=result if number % 2 else None)
                assert repr(result) == repr(wanted)
                assert (result.message_id, result.store_timestamp) == (wanted.message_id, wanted.store_timestamp)
            assert log_of(one) == log_of(other)
            for store in (one, other):
                store.log.flush()
                store.engine.dispatcher.step(-1, True)
            assert seen(one) == seen(other)


def test_an_inner_batch(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.topic_table.ensure("B", 1, attributes={"queue.type": "BatchCQ"})
        put = store.engine.put_encoded
        assert [put(b"B", 0, b"x", b"INNER_NUM\x013\x02", 0, 0xC0).queue_offset for _ in range(3)] == [0, 3, 6]
        assert put(b"B", 0, b"single").queue_offset == 9
        with pytest.raises(MessageIllegal, match="INNER_NUM"):
            put(b"B", 0, b"x", b"", 0, 0xC0)
        with pytest.raises(MessageIllegal, match="BatchCQ"):
            put(b"A", 0, b"x", b"INNER_NUM\x013\x02", 0, 0xC0)
        assert store.queues() == [("B", 0, 0, 10)]


def test_a_half_and_a_rolled_back_message_have_no_place_in_a_queue(tmp_path: Path) -> None:
    with opened(tmp_path, message_index_enable=False) as store:
        put = store.engine.put_encoded
        put(b"A", 0, b"first")
        assert len(store.get("A", 0, 0)) == 1
        half = put(b"A", 0, b"half", sys_flag=HALF)
        commit = put(b"A", 0, b"commit", sys_flag=COMMIT, prepared_transaction_offset=half.physical_offset)
        rolled = put(b"A", 0, b"rolled", sys_flag=ROLLBACK, prepared_transaction_offset=half.physical_offset)
        assert [r.queue_offset for r in (half, commit, rolled)] == [0, 1, 0]
        assert store.log.dispatched == store.log.written  # also those without a unit need no dispatch
        assert [bytes(m.body) for m in store.get("A", 0, 0)] == [b"first", b"commit"]
        found = store.get_by_offset(commit.physical_offset)
        assert (found.prepared_transaction_offset, found.sys_flag) == (half.physical_offset, COMMIT)


# --- light queues ---


def test_offsets_of_light_queues_have_neither_holes_nor_repeats(tmp_path: Path) -> None:
    import threading

    count = 100
    with opened(tmp_path, **LIGHT) as store:

        def through_a_topic(number: int) -> None:
            for _ in range(count):
                store.put(f"T{number}", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})

        def directly() -> None:
            for _ in range(count):
                store.engine.put_encoded(b"%LMQ%a", 0, b"y")

        threads = [threading.Thread(target=through_a_topic, args=(number,)) for number in range(2)]
        threads.append(threading.Thread(target=directly))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        places = []
        for number in range(2):
            for first in range(0, count, 32):
                for message in store.get(f"T{number}", 0, first):
                    places.append(int(message.properties["INNER_MULTI_QUEUE_OFFSET"]))
        for first in range(0, 3 * count, 32):
            places += [m.record_queue_offset for m in store.get("%LMQ%a", 0, first) if m.topic == "%LMQ%a"]
        assert sorted(places) == list(range(3 * count))
        assert store.max_offset("%LMQ%a", 0) == 3 * count


# --- what is refused ---


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"topic": "A"}, MessageIllegal, "topic: expected bytes, found str"),
        ({"topic": b""}, MessageIllegal, "topic"),
        ({"topic": b"a/b"}, MessageIllegal, "topic"),
        ({"topic": b"\xff"}, MessageIllegal, "topic: expected UTF-8"),
        ({"topic": b"a" * 128}, TopicTooLong, "127"),
        ({"topic": b"%RETRY%" + b"a" * 300}, TopicTooLong, "255"),
        ({"queue_id": -1}, MessageIllegal, "queue_id: expected 0 to"),
        ({"queue_id": 1 << 31}, MessageIllegal, "queue_id"),
        ({"queue_id": "0"}, MessageIllegal, "queue_id: expected an int, found str"),
        ({"body": "text"}, MessageIllegal, "body"),
        ({"body": None}, MessageIllegal, "body"),
        ({"body": memoryview(b"abcd")[::2]}, MessageIllegal, "body"),
        ({"body": b"x" * 2000}, MessageTooLarge, "body: expected at most 1000"),
        ({"properties": "TAGS"}, MessageIllegal, "properties: expected bytes"),
        ({"properties": b"p" * 32768}, PropertiesTooLong, "32767"),
        ({"flag": 1 << 31}, MessageIllegal, "flag"),
        ({"sys_flag": 1 << 40}, MessageIllegal, "sys_flag"),
        ({"born_timestamp": 1 << 63}, MessageIllegal, "born_timestamp"),
        ({"born_host": b"1234"}, MessageIllegal, "born_host: expected 8 bytes"),
        ({"store_host": "127.0.0.1:1"}, MessageIllegal, "store_host: expected bytes"),
        ({"reconsume_times": 1 << 31}, MessageIllegal, "reconsume_times"),
        ({"prepared_transaction_offset": 1.5}, MessageIllegal, "prepared_transaction_offset"),
    ],
)
def test_what_is_refused_leaves_no_byte(
    tmp_path: Path, changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    with opened(tmp_path, max_message_bytes=1000, mappedFileSizeCommitLog=128 << 10) as store:
        with pytest.raises(error, match=text):
            store.engine.put_encoded(**{"topic": b"A", "queue_id": 0, "body": b"x"} | changed)
        assert (store.log.written, store.put_count, store.topics()) == (0, 0, [])
        # A batch has the flag of each message, and stores no properties of its own.
        own = changed.keys().isdisjoint({"flag", "prepared_transaction_offset", "body"})
        if own and error is not PropertiesTooLong:
            with pytest.raises(error, match=text):
                store.engine.put_batch_encoded(**{"topic": b"A", "queue_id": 0, "body": element(b"x")} | changed)
        assert (store.log.written, store.put_count, store.topics()) == (0, 0, [])


def test_a_record_that_no_log_file_holds(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.engine.put_encoded(b"A", 0, b"x" * ((32 << 10) - 8 - 91 - 1))
        with pytest.raises(MessageTooLarge, match="record: expected at most"):
            store.engine.put_encoded(b"A", 0, b"x" * ((32 << 10) - 8 - 91))


def test_states_in_which_nothing_is_taken(tmp_path: Path) -> None:
    with opened(tmp_path / "slave", broker_role="SLAVE") as store:
        for put in (store.engine.put_encoded, store.engine.put_batch_encoded):
            with pytest.raises(NotMaster):
                put(b"A", 0, element(b"x"))
    store = opened(tmp_path / "closed")
    place = store.engine.put_encoded(b"A", 0, b"x").physical_offset
    store.close()
    for put in (store.engine.put_encoded, store.engine.put_batch_encoded):
        with pytest.raises(StoreClosed):
            put(b"A", 0, element(b"x"))
    with pytest.raises((StoreClosed, OffsetError)):
        store.engine.put_stored(place)


def test_a_topic_that_was_deleted_begins_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for _ in range(3):
            store.engine.put_encoded(b"A", 0, b"old")
        store.delete_topic("A")
        assert store.engine.put_encoded(b"A", 0, b"new").queue_offset == 0
        assert store.engine.put_batch_encoded(b"A", 0, element(b"newer"))[0].queue_offset == 1
        assert [bytes(m.body) for m in store.get("A", 0, 0)] == [b"new", b"newer"]


def test_numbers_of_every_length(tmp_path: Path) -> None:
    edges = sorted(s * ((1 << bits) + d) for bits in (0, 15, 30, 31, 45, 60, 62) for d in (-1, 0, 1) for s in (1, -1))
    longs = [-(1 << 63), *edges, (1 << 63) - 1]
    ints = [-(1 << 31), *(number for number in edges if -(1 << 31) <= number < 1 << 31)]
    with opened(tmp_path, mappedFileSizeCommitLog=128 << 10) as store:
        for number in longs:
            place = store.engine.put_encoded(
                b"A", 0, b"x", born_timestamp=number, prepared_transaction_offset=number
            ).physical_offset
            message = store.get_by_offset(place)
            assert (message.born_timestamp, message.prepared_transaction_offset) == (number, number)
        for number in ints:
            place = store.engine.put_encoded(b"A", 0, b"x", flag=number, reconsume_times=number).physical_offset
            message = store.get_by_offset(place)
            assert (message.flag, message.reconsume_times) == (number, number)


def test_queues_in_turns(tmp_path: Path) -> None:
    places = [(b"topic", 0), (b"topic", 1), (b"topic", 0), (b"topid", 0), (b"topic-2", 1), (b"topic", 1), (b"t", 0)] * 3
    with opened(tmp_path, mappedFileSizeCommitLog=128 << 10) as store:
        counts: dict[tuple[bytes, int], int] = {}
        for topic, queue_id in places:
            found = store.engine.put_encoded(topic, queue_id, b"%s %d" % (topic, queue_id))
            assert found.queue_offset == counts.get((topic, queue_id), 0)
            counts[topic, queue_id] = found.queue_offset + 1
        for (topic, queue_id), count in counts.items():
            bodies = [bytes(m.body) for m in store.get(topic.decode(), queue_id, 0)]
            assert bodies == [b"%s %d" % (topic, queue_id)] * count


# --- WAIT ---


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        (b"", True),
        (b"WAIT\x01true\x02", True),
        (b"WAIT\x01TRUE\x02", True),
        (b"WAIT\x01\x02", True),  # no pair at all, as RocketMQ parses it
        (b"WAIT\x01false\x02", False),
        (b"a\x01b\x02WAIT\x01false", False),
        (b"WAIT\x01yes\x02", False),
        (b"WAIT\x01true\x02WAIT\x01false\x02", False),
    ],
)
def test_the_wait_property_of_encoded_properties_counts(tmp_path: Path, text: bytes, waits: bool) -> None:
    with open_still(tmp_path, flush_disk_type="SYNC_FLUSH", **SMALL) as store:  # who waits flushes; nobody else does
        for way in (
            lambda: store.engine.put_encoded(b"A", 0, b"x", text),
            lambda: store.put_message(Message("A", b"x", properties=text)),
            lambda: store.engine.put_batch_encoded(b"A", 0, element(b"x"), text),
            lambda: store.engine.put_stored(0, properties=text),
        ):
            flushed = store.log.flushed
            assert way().status is PutMessageStatus.PUT_OK
            assert store.log.flushed == (store.log.written if waits else flushed)
            assert flushed < store.log.written
            store.log.flush()


# --- a batch as a client sends it ---


def test_a_batch_has_the_bytes_of_put_batch(tmp_path: Path) -> None:
    bodies = [b"", b"b", b"c" * 200]
    texts = [b"", b"TAGS\x01t1\x02", b"KEYS\x01k\x02a\x01b\x02"]
    common = {"queue_id": 3, "sys_flag": 1, "born_timestamp": 17, "born_host": V6, "reconsume_times": 2}
    with opened(tmp_path / "a") as one, opened(tmp_path / "b") as other:
        for _ in range(60):  # over the end of a log file
            wanted = one.put_batch(
                Message("A", body, properties=text, flag=flag, store_host=V4, **common)  # type: ignore[arg-type]
                for flag, (body, text) in enumerate(zip(bodies, texts, strict=True))
            )
            body = b"".join(element(b, t, i) for i, (b, t) in enumerate(zip(bodies, texts, strict=True)))
            found = other.engine.put_batch_encoded(
                b"A", body=memoryview(bytearray(body)), properties=b"UNIQ_KEY\x01u\x02", store_host=V4, **common
            )
            assert [repr(r) for r in found] == [repr(r) for r in wanted]
            assert found.message_id.split(",")[0] == found[0].message_id
        assert log_of(one) == log_of(other)
        assert seen(one) == seen(other)
        assert len(other.query("A", "k")) == 32


def test_a_batch_with_a_checksum_property_is_stored_unchanged(tmp_path: Path) -> None:
    with opened(tmp_path, enabled_append_prop_crc=True) as store:
        place = store.engine.put_batch_encoded(b"A", 0, element(b"x", b"a\x01b"))[0].physical_offset
        assert store.get_by_offset(place).properties_bytes[:12] == b"a\x01b__CRC32#\x01"  # no separator, as RocketMQ
        assert store.get_by_offset(place).size == 88 + 1 + 2 + 2 + 3 + 20


@pytest.mark.parametrize(
    ("body", "more", "error", "text"),
    [
        (b"", {}, MessageIllegal, "empty"),
        (element(b"x")[:-1], {}, MessageIllegal, "message 0 at byte 0"),
        (element(b"x") + b"\0" * 19, {}, MessageIllegal, "message 1 at byte 23"),
        (element(b"x") + struct.pack(">iiiii", 0, 0, 0, 0, -1) + b"\0\0", {}, MessageIllegal, "message 1"),
        (element(b"x") + struct.pack(">iiiiih", 0, 0, 0, 0, 0, -1), {}, MessageIllegal, "message 1"),
        (element(b"x"), {"sys_flag": HALF}, MessageIllegal, "transaction"),
        (element(b"x"), {"sys_flag": 0x80}, MessageIllegal, "inner batch"),
        (element(b"x"), {"properties": b"DELAY\x011\x02"}, MessageIllegal, "delay"),
        (element(b"x" * 1001), {}, MessageTooLarge, "message 0: expected a body of at most 1000"),
        (element(b"x" * 900) * 80, {}, MessageTooLarge, "batch: expected at most 66536"),
        (element(b"x" * 900, b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"), {}, MessageIllegal, "light"),
    ],
)
def test_a_batch_that_is_refused_leaves_no_byte(
    tmp_path: Path, body: bytes, more: dict[str, Any], error: type[Exception], text: str
) -> None:
    with opened(tmp_path, max_message_bytes=1000, mappedFileSizeCommitLog=128 << 10, **LIGHT) as store:
        with pytest.raises(error, match=text):
            store.engine.put_batch_encoded(b"A", 0, body, **more)
        assert (store.log.written, store.put_count) == (0, 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_batch_body_does_harm(shared: mqfast.MessageStore, data: st.DataObject) -> None:
    parts = [element(b"x" * n, b"a\x01b\x02", size=size) for n, size in ((0, None), (5, 0), (9, -1))]
    body = bytearray(b"".join(data.draw(st.lists(st.sampled_from(parts), max_size=5))))
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    before = shared.log.written
    try:
        found = shared.engine.put_batch_encoded(b"A", 0, body)
    except MessageIllegal:
        assert shared.log.written == before
    else:
        for result in found:
            assert shared.get_by_offset(result.physical_offset).check_crc()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with opened(tmp_path_factory.mktemp("shared"), message_index_enable=False) as store:
        yield store


# --- a stored record once more ---


def test_a_stored_record_under_another_topic(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        body = bytes(range(256)) * 20
        first = store.engine.put_encoded(b"A", 1, body, b"TAGS\x01t\x02", 5, 1, 77, V6, V4, 3, 9)
        again = store.engine.put_stored(first.physical_offset)
        assert again.queue_offset == 1
        one, other = store.get_by_offset(first.physical_offset), store.get_by_offset(again.physical_offset)
        places = slice(20, 36), slice(68, 76)  # queue offset and physical offset; store time
        texts = [bytearray(m.to_bytes()) for m in (one, other)]
        for text in texts:
            for place in places:
                text[place] = bytes(place.stop - place.start)
        assert texts[0] == texts[1]

        delayed = store.engine.put_stored(
            first.physical_offset,
            b"%RETRY%g",
            0,
            b"RETRY_TOPIC\x01A\x02",
            sys_flag=COMMIT,
            born_timestamp=78,
            store_host=V6,
            reconsume_times=4,
            prepared_transaction_offset=first.physical_offset,
        )
        found = store.get("%RETRY%g", 0, 0)[0]
        assert found.physical_offset == delayed.physical_offset
        assert (bytes(found.body), found.flag, found.born_timestamp, found.reconsume_times) == (body, 5, 78, 4)
        assert (found.properties, found.sys_flag & 0xF) == ({"RETRY_TOPIC": "A"}, COMMIT)
        assert (found.prepared_transaction_offset, found.check_crc()) == (first.physical_offset, True)
        assert found.born_host == one.born_host
        assert found.store_host != one.store_host


def test_a_stored_record_over_the_end_of_many_log_files(tmp_path: Path) -> None:
    with opened(tmp_path, enabled_append_prop_crc=True) as store:
        place = store.engine.put_encoded(b"A", 0, b"z" * 3000, b"a\x01b").physical_offset
        for _ in range(60):
            place = store.engine.put_stored(place, b"B").physical_offset
        assert store.max_offset("B", 0) == 60
        assert store.get_by_offset(place).properties["a"] == "b"
        assert store.get_by_offset(place).properties_bytes.count(b"__CRC32#") == 1
    with opened(tmp_path, enabled_append_prop_crc=True, force_verify_prop_crc=True) as store:
        assert store.max_offset("B", 0) == 60


def test_put_stored_without_a_whole_record_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = store.engine.put_encoded(b"A", 0, b"body" * 10)
        written = store.log.written
        for place, error in ((written, OffsetError), (-1, OffsetError), (5, CorruptFile)):
            with pytest.raises(error):
                store.engine.put_stored(place, b"B")
        with pytest.raises(MessageIllegal, match="physical_offset"):
            store.engine.put_stored("0", b"B")  # type: ignore[arg-type]
        with pytest.raises(TopicTooLong):
            store.engine.put_stored(0, b"B" * 200)
        with open(store.log.files[0].path, "r+b") as file:
            file.seek(first.physical_offset + 90)
            file.write(b"!")
        with pytest.raises(CorruptFile, match="CRC"):
            store.engine.put_stored(first.physical_offset, b"B")
        assert store.log.written == written
        assert store.topics() == ["A"]


# --- results ---


def test_a_result_that_is_given_is_filled_and_nothing_else_is_kept(tmp_path: Path) -> None:
    import sys

    topic, body, text, host = b"A" * 20, bytearray(b"x"), b"TAGS\x01t\x02" + b"", bytes(bytearray(V4))
    with opened(tmp_path) as store:
        put = store.engine.put_encoded
        result = put(topic, 0, body, text, store_host=host)
        counts = [sys.getrefcount(thing) for thing in (topic, body, text, host, result)]
        for number in range(1, 50):
            assert put(topic, 0, body, text, store_host=host, result=result) is result
            assert result.queue_offset == number
        assert [sys.getrefcount(thing) for thing in (topic, body, text, host, result)] == counts
        body.append(1)  # no buffer is held
        assert properties.decode(store.get_by_offset(0).properties_bytes) == {"TAGS": "t"}


def test_a_store_that_is_killed_behind_a_put_has_it(tmp_path: Path) -> None:
    import os

    child = os.fork()
    if child == 0:
        try:
            store = mqfast.open(tmp_path, **SMALL)
            for number in range(200):
                place = store.engine.put_encoded(b"A", number % 3, b"%d" % number, b"KEYS\x01k\x02")
                store.engine.put_batch_encoded(b"B", 0, element(b"%d" % number) * 3)
                store.engine.put_stored(place.physical_offset, b"C")
        finally:
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    with mqfast.open(tmp_path, **SMALL) as store:
        assert sum(store.max_offset("A", queue_id) for queue_id in range(3)) == 200
        assert (store.max_offset("B", 0), sum(store.max_offset("C", q) for q in range(3))) == (600, 200)
        assert len(store.query("A", "k")) == 32

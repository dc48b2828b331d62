"""Java reads what mqfast wrote, goes on in it, and mqfast reads that: every message, offset, property, time and key.

Room: tests/compat. Java works on a copy where it only reads. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import copy_of_open
from java_oracle import NEWEST, JavaOracle, checkpoint_numbers
from laboratory import lab, open_still
from ours import LONG_TOPIC, TAGS, carry_out, make_steps, messages_of, write, write_and_be_killed
from reference import ModelStore, Record, encode_properties, jhash, scan

import mqfast

SMALL = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 200,
}
ROLLING = {
    "mappedFileSizeCommitLog": 16384,
    "mappedFileSizeConsumeQueue": 200,
    "maxHashSlotNum": 8,
    "maxIndexNum": 20,
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A way to write a store: its settings, its messages, and how the writer and later Java end."""

    name: str
    settings: dict[str, Any]
    steps: dict[str, Any]
    killed: bool = False
    java_stop: str = "halt"

    def __str__(self) -> str:
        return self.name


# Java names index files by the millisecond: rebuilding small ones, it gives two the same name and loses entries.
REBUILT = {"messageIndexSafe": True, "maxIndexNum": 5000}
# 5.5 goes back ten log files at most, so units that a killed writer had not put yet must be younger than those.
TEN = {"mappedFileSizeCommitLog": 32768}
PROP_CRC = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 3}
KINDS = [
    Kind("normal", SMALL, {"count": 120}, java_stop="clean"),
    Kind("killed", SMALL | REBUILT, {"count": 300}, killed=True, java_stop="clean"),
    Kind("killed-rolled", ROLLING | REBUILT | TEN, {"count": 300, "batches": True}, killed=True),
    Kind("rolled", ROLLING, {"count": 250}),
    Kind("batch", ROLLING, {"count": 60, "batches": True}),
    Kind("long-topic", SMALL, {"count": 60, "long_topic": True}),
    Kind("transient-pool", SMALL | POOL, {"count": 120, "batches": True}),
    Kind("sync-flush", SMALL | {"flushDiskType": "SYNC_FLUSH"}, {"count": 60, "batches": True}),
    Kind("prop-crc", SMALL | PROP_CRC, {"count": 120, "batches": True}),
    Kind("ipv6", SMALL, {"count": 60, "six": True}),
]


def java_host(text: str) -> str:
    """Turn ``ip:port`` into Java's ``ip|port``; Java writes all eight groups of an IPv6 address."""
    address, _, port = text.rpartition(":")
    parsed = ipaddress.ip_address(address.strip("[]"))
    if parsed.version == 4:
        return f"{parsed}|{port}"
    return ":".join(f"{int(group, 16):x}" for group in parsed.exploded.split(":")) + f"|{port}"


def properties_of(message: dict[str, Any]) -> dict[str, str]:
    properties = dict(message.get("properties", {}))
    if "tags" in message:
        properties["TAGS"] = message["tags"]
    if "keys" in message:
        properties["KEYS"] = " ".join(message["keys"])
    return properties


def expected_row(message: dict[str, Any]) -> dict[str, Any]:
    """What Java must say of a message, as far as the message alone decides it."""
    body, properties = message["body"], properties_of(message)
    born, store = (message.get(name, default) for name, default in HOSTS)
    return {
        "topic": message["topic"],
        "queueId": message["queue_id"],
        "recordTopic": None,
        "recordQueueId": message["queue_id"],
        "magic": "daa320ab" if message["topic"] == LONG_TOPIC else "daa320a7",
        "tagsCode": jhash(properties["TAGS"]) if "TAGS" in properties else 0,
        "flag": message["flag"],
        "sysFlag": 0x10 * ("[" in born) | 0x20 * ("[" in store),
        "bornTimestamp": message["born_timestamp"],
        "bornHost": java_host(born),
        "storeHost": java_host(store),
        "reconsumeTimes": 0,
        "preparedTransactionOffset": 0,
        "bodyLength": len(body),
        "bodyCRC": zlib.crc32(body) & 0x7FFFFFFF,
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "properties": properties,
    }


HOSTS = (("born_host", "127.0.0.1:0"), ("store_host", "127.0.0.1:10911"))


def check_messages(dump: dict[str, Any], sent: list[dict[str, Any]]) -> None:
    """Every sent message is there, once, in its place; and nothing else."""
    rows: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in dump["messages"]:
        row["properties"].pop("__CRC32#", None)
        rows[row["topic"], row["queueId"]].append(row)
    wanted: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for message in sent:
        wanted[message["topic"], message["queue_id"]].append(expected_row(message))
    assert {where: len(found) for where, found in rows.items()} == {where: len(want) for where, want in wanted.items()}
    for where, want in wanted.items():
        assert [row["cqOffset"] for row in rows[where]] == list(range(len(want)))
        assert [row["queueOffset"] for row in rows[where]] == list(range(len(want)))
        for row, fields in zip(rows[where], want, strict=True):
            assert {name: row[name] for name in fields} == fields
    assert len([row for row in dump["log"] if row[2]]) == len(sent)


def check_answers(dump: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    """What the puts answered is what Java finds."""
    rows = {row["physicalOffset"]: row for row in dump["messages"]}
    for answer in answers:
        if answer:
            assert answer["status"] == "PUT_OK"
            row = rows[answer["physicalOffset"]]
            assert {name: row[name] for name in answer if name != "status"} == {
                k: v for k, v in answer.items() if k != "status"
            }
    assert sum(map(bool, answers)) > 20


def model_of(store: Path, settings: dict[str, Any], sent_sizes: list[int]) -> ModelStore:
    """Put the records of the log again, in groups of ``sent_sizes`` (a batch is one group), into a reference store."""
    with_crc = bool(settings.get("enabledAppendPropCRC"))
    model = ModelStore(
        commit_log_bytes=settings["mappedFileSizeCommitLog"],
        consume_queue_bytes=settings["mappedFileSizeConsumeQueue"],
        slots=settings["maxHashSlotNum"],
        entries=settings["maxIndexNum"],
        with_crc=with_crc,
    )
    files = {int(path.name): path.read_bytes() for path in (store / "commitlog").iterdir()}
    records = [record for _, _, record in scan(files, force_crc_property=with_crc) if record is not None]
    assert len(records) == sum(sent_sizes)
    plain: list[Record] = [dataclasses.replace(record, with_crc=False) for record in records]
    for size in sent_sizes:
        model.put_batch(plain[:size]) if size > 1 else model.put(plain[0])
        del plain[:size]
    return model


def sizes_of(steps: list[dict[str, Any]]) -> list[int]:
    return [len(step.get("batch", [step])) for step in steps]


def index_questions(sent: list[dict[str, Any]]) -> list[list[Any]]:
    topics = sorted({message["topic"] for message in sent})
    keys = [f"k{i}" for i in range(30)] + ["no such key"] + [f"T#{tag}" for tag in TAGS]
    questions: list[list[Any]] = [[topic, key, 64, 0, 2**62] for topic in topics for key in keys]
    return questions + [[m["topic"], properties_of(m).get("UNIQ_KEY", "none"), 64, 0, 2**62] for m in sent]


def indexed(message: dict[str, Any]) -> list[str]:
    """Its unique key, its keys, and its tags as 5.5 has them in the index."""
    properties = properties_of(message)
    return [properties.get("UNIQ_KEY", ""), *message.get("keys", []), f"T#{properties.get('TAGS')}"]


def check_derived(dump: dict[str, Any], model: ModelStore, sent: list[dict[str, Any]], *, exact: bool) -> None:
    """Java's index answers and time searches are those of the reference; recovery may list a key's record twice."""
    asked = 0
    for topic, key, limit, begin, end, found in dump["index"]:
        wanted = model.query_offsets(topic, key, limit, begin, end)
        assert (found if exact else sorted(set(found))) == (wanted if exact else sorted(set(wanted))), (topic, key)
        # The reference too is held to what was sent; both may list hash twins besides.
        texts = [message for message in sent if message["topic"] == topic]
        holders = [m for m in texts if key in indexed(m)]
        assert len(set(found)) >= min(len(holders), limit)
        asked += bool(holders)
    assert asked > 20
    for queue in dump["queues"]:
        where = queue["topic"], queue["queueId"]
        assert (queue["minOffset"], queue["maxOffset"]) == (0, model.max_offset(*where))
        for time_ms, boundary, offset in queue["offsetByTime"]:
            assert offset == model.offset_by_time(*where, time_ms, boundary), (where, time_ms, boundary)


def check_query(dump: dict[str, Any], store: Path, settings: dict[str, Any]) -> None:
    """query of the store's reader gives what Java's IndexService names, in its order, but for hash twins."""
    sizes = {"max_hash_slot_num": settings["maxHashSlotNum"], "max_index_num": settings["maxIndexNum"]}
    several = 0
    with mqfast.StoreReader(store, **sizes) as reader:
        for topic, key, limit, begin, end, found in dump["index"]:
            asked: dict[str, Any] = {"tag": key[2:]} if key.startswith("T#") else {"key": key}
            hits = reader.query(topic, max_count=limit, begin_ms=begin, end_ms=end, **asked)
            ours = [message.physical_offset for message in hits]
            assert ours == [place for place in dict.fromkeys(found) if place in set(ours)], (topic, key)
            for place in set(found) - set(ours):
                twin = reader.get_by_offset(place)
                assert key not in [*twin.keys, f"T#{twin.tags}"]
                assert twin.properties.get("UNIQ_KEY") != key
            several += len(ours) > 1
    assert several > 5


def java_steps(count: int, first: int) -> list[dict[str, Any]]:
    """Messages for Java's writer, in the form of ours."""
    steps = make_steps(count, 1000 + first)
    for step in steps:
        step |= {"born_host": "10.9.8.7:6", "store_host": "127.0.0.1:10911"}
    return steps


def for_java(step: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": step["topic"],
        "queueId": step["queue_id"],
        "body": step["body"],
        "flag": step["flag"],
        "bornTimestamp": step["born_timestamp"],
        "bornHost": step["born_host"].replace(":", "|"),
        "storeHost": step["store_host"].replace(":", "|"),
        "propertiesString": encode_properties(properties_of(step)).decode(),
    }


def read_all(store: Any, sent: list[dict[str, Any]]) -> None:
    """Every sent message comes out of the open mqfast store in its order."""
    wanted: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for message in sent:
        wanted[message["topic"], message["queue_id"]].append(message["body"])
    for (topic, queue_id), bodies in wanted.items():
        found: list[bytes] = []
        offset = 0
        while len(found) < len(bodies):
            got = store.get(topic, queue_id, offset, max_count=32)
            assert got.status.name == "FOUND", (topic, queue_id, offset, got.status)
            assert got.next_offset > offset
            found += [bytes(message.body) for message in got]
            offset = got.next_offset
        assert found == bodies
        assert store.get(topic, queue_id, offset).status.name == "OFFSET_OVERFLOW_ONE"


READERS = [(release, kind) for release in (NEWEST, "5.3.3") for kind in KINDS]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("release", "kind"), READERS, ids=str)
def test_java_opens_a_store_of_mqfast_and_appends(
    oracle_of: Callable[[str], JavaOracle], tmp_path: Path, release: str, kind: Kind
) -> None:
    import mqfast

    java_oracle = oracle_of(release)

    store, settings = tmp_path / "store", kind.settings
    steps = make_steps(seed=KINDS.index(kind), **kind.steps)
    if kind.killed:
        answers = write_and_be_killed(store, settings, steps, kill_after=len(steps) * 2 // 3)
        assert (store / "abort").exists()
    else:
        answers = write(store, settings, steps)
        assert len(answers) == len(steps)

    # Java reads. A killed writer may have stored one step that it could not acknowledge any more.
    asked = index_questions(messages_of(steps))
    if kind.killed and release < "5.5":  # its recovery makes the index anew, without tags
        asked = [row for row in asked if not row[1].startswith("T#")]
    probe = java_oracle.dump(store, settings, index=asked)
    stored = len([row for row in probe["log"] if row[2]])
    kept = next((n for n in range(len(answers), len(answers) + 2) if sum(sizes_of(steps[:n])) == stored), None)
    assert kept is not None, f"{len(answers)} steps acknowledged, {stored} messages stored"
    steps = steps[:kept]
    sent = messages_of(steps)
    check_messages(probe, sent)
    check_answers(probe, answers)
    model = model_of(store, settings, sizes_of(steps))
    check_derived(probe, model, sent, exact=not kind.killed)
    if not kind.killed:
        assert model.differences(store) == []  # byte for byte what the reference, and so Java, makes of these messages
        assert probe["abortFileBefore"] is False
        assert probe["filesDeletedByLoad"] == probe["filesCreatedByLoad"] == []

    # Java goes on in place, then mqfast does, then Java reads again.
    more = java_steps(40, KINDS.index(kind))
    script = [*map(for_java, more), {"op": "dispatched"}, {"op": "flush"}]
    put = java_oracle.put(store, settings, script, stop=kind.java_stop)
    assert {row["status"] for row in put} == {"PUT_OK"}
    last = java_steps(10, 500)
    with mqfast.open(store, **settings) as ours:
        read_all(ours, sent + more)
        for step in last:
            rest = dict(step)
            ours.put(rest.pop("topic"), rest.pop("body"), **rest)
        read_all(ours, sent + more + last)
    check_messages(java_oracle.dump(store, settings), sent + more + last)


def test_an_accelerated_recovery_of_5_5_begins_where_our_checkpoint_says(
    java_oracle: JavaOracle, tmp_path: Path
) -> None:
    """The sixth number of the checkpoint: without it 5.5 refuses to load, and behind it units would be missing."""
    steps = make_steps(80, 55)
    with open_still(tmp_path / "store", **ROLLING) as store:
        carry_out(store, steps[:60], lambda _: None)
        store.get("TopicA", 0, 0)  # after it everything is dispatched
        store.flush()
        lab(store).flush_queues()  # as its thread does every second
        stated = checkpoint_numbers(tmp_path / "store")
        assert stated["logicsPhysicalOffset"] == store.max_physical_offset
        carry_out(store, steps[60:], lambda _: None)
        copy_of_open(tmp_path / "store", tmp_path / "killed")
    assert (tmp_path / "killed" / "abort").exists()
    dump = java_oracle.dump(tmp_path / "killed", {**ROLLING, "enableAcceleratedRecovery": True})
    assert dump["checkpointFileBefore"]["logicsPhysicalOffset"] >= stated["logicsPhysicalOffset"]
    check_messages(dump, steps)


def test_4_9_7_reads_ours(oracle_of: Callable[[str], JavaOracle], tmp_path: Path) -> None:
    """The older release reads version 1 records, queues and index alike."""
    store = tmp_path / "store"
    steps = make_steps(200, 77, batches=True)
    answers = write(store, ROLLING, steps)
    sent = messages_of(steps)
    dump = oracle_of("4.9.7").dump(store, ROLLING, index=index_questions(sent))
    check_messages(dump, sent)
    check_answers(dump, answers)
    model = model_of(store, ROLLING, sizes_of(steps))
    for topic, key, limit, begin, end, found in dump["index"]:
        assert found == model.query_offsets(topic, key, limit, begin, end), (topic, key)
    check_query(dump, store, ROLLING)

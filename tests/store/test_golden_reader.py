"""StoreReader against every golden store: each message, bound, time search and key query equals what Java reports.

The golden directories are opened in place: the reader must not change a byte, which is checked too. Formats:
``mqfast/store/FORMAT.md``; what the answers mean: ``tests/golden/README.md``.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab

from mqfast.properties import index_entries, index_keys
from mqfast.store.base.results import BoundaryType, GetMessageStatus
from mqfast.store.reader.store_reader import StoreReader
from mqfast.store.record.record import StoredMessage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from conftest import GOLDEN, Case, golden_cases

KILLED = ("killed", "killed-no-queues", "torn-flip", "torn-half", "torn-middle")
ENGINE = GOLDEN / "golden-engine"


def _image(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def reader(golden_case: Case) -> Iterator[StoreReader]:
    """A reader of the golden store itself; afterwards no byte of it, no name and no time may have changed."""
    before = _image(golden_case.store)
    with StoreReader(golden_case.store) as opened:
        yield opened
    assert _image(golden_case.store) == before


def _host(text: str) -> str:
    address, _, port = text.partition("|")
    if ":" in address:
        import ipaddress

        return f"[{ipaddress.IPv6Address(address)}]:{port}"
    return f"{address}:{port}"


def _same(message: StoredMessage, row: dict[str, Any]) -> None:
    """Compare every field of the golden row."""
    assert message.queue_offset == row["cqOffset"]
    assert message.physical_offset == row["physicalOffset"]
    assert message.size == row["size"]
    assert message.topic == (row["recordTopic"] or row["topic"])
    assert message.queue_id == row["recordQueueId"]
    assert message.record_queue_offset == row["queueOffset"]
    assert f"{message.magic:08x}" == row["magic"]
    assert message.sys_flag == row["sysFlag"]
    assert message.flag == row["flag"]
    assert message.born_timestamp == row["bornTimestamp"]
    assert message.store_timestamp == row["storeTimestamp"]
    assert message.born_host == _host(row["bornHost"])
    assert message.store_host == _host(row["storeHost"])
    assert message.reconsume_times == row["reconsumeTimes"]
    assert message.prepared_transaction_offset == row["preparedTransactionOffset"]
    assert message.body_crc == row["bodyCRC"]
    assert len(message.body) == row["bodyLength"]
    assert hashlib.sha256(message.body).hexdigest() == row["bodySha256"]
    assert message.message_id == row["msgId"]
    assert message.properties == row["properties"]
    assert message.check_crc()


def _by_queue(case: Case) -> dict[tuple[str, int], list[dict[str, Any]]]:
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in case.expected["messages"]:
        rows.setdefault((row["topic"], row["queueId"]), []).append(row)
    return rows


def test_every_message(golden_case: Case, reader: StoreReader) -> None:
    """Each queue gives the messages that Java gives, through messages(), through get() one by one, and by look()."""
    if golden_case.name == "killed-no-queues":
        assert reader.topics() == []
        return
    rows = _by_queue(golden_case)
    torn = golden_case.name == "torn-middle"
    for (topic, queue_id), wanted in rows.items():
        found = []
        last = wanted[-1]["cqOffset"]
        for row in wanted:
            result = reader.get(topic, queue_id, row["cqOffset"], 1)
            assert result.status == GetMessageStatus.FOUND
            assert result.next_offset == row["cqOffset"] + row.get("batchNum", 1)
            assert result.total_bytes == row["size"]
            (message,) = result
            _same(message, row)
            assert bytes(message) == bytes(message.body) == result.bodies()[0]
            found.append(message)
            _same(reader.get_by_offset(row["physicalOffset"]), {**row, "cqOffset": row["queueOffset"]})
            assert reader.get_by_offset(row["msgId"]).physical_offset == row["physicalOffset"]
        if not torn:
            walked = [m for m in reader.messages(topic, queue_id) if m.queue_offset <= last]
            assert [m.to_bytes() for m in walked] == [m.to_bytes() for m in found]
            assert [m.queue_offset for m in walked] == [row["cqOffset"] for row in wanted]
    if golden_case.name not in KILLED:
        assert sum(1 for q in reader.queues() for _ in reader.messages(q.topic, q.queue_id)) == sum(
            map(len, rows.values())
        )


def test_bounds(golden_case: Case, reader: StoreReader) -> None:
    """Minimum and maximum of every queue; what a kill left undispatched may be missing, what is torn is not shown."""
    found = {(q.topic, q.queue_id): q for q in reader.queues()}
    if golden_case.name == "killed-no-queues":
        assert found == {}
        return
    # 4.9.7 makes a queue object for every configured queue; those have no directory.
    wanted = {(q["topic"], q["queueId"]): q for q in golden_case.expected["queues"]}
    wanted = {key: q for key, q in wanted.items() if key in found or q["maxOffset"]}
    assert set(found) <= set(wanted) or golden_case.name in KILLED
    for key, queue in wanted.items():
        if golden_case.name == "torn-middle":
            assert found[key].max_offset >= queue["maxOffset"], key
        else:
            assert found[key].max_offset == queue["maxOffset"], key
            assert reader.max_offset(*key) == queue["maxOffset"]
        assert found[key].min_offset == queue["minOffset"] == reader.min_offset(*key), key
    assert reader.topics() == sorted({topic for topic, _ in found})


def test_the_log(golden_case: Case, reader: StoreReader) -> None:
    """The scan gives every row of the log and stops where Java stops; so do log_range and the earliest time."""
    columns = golden_case.expected["logColumns"]
    rows = [dict(zip(columns, row, strict=True)) for row in golden_case.expected["log"] if row[-1] != "BLANK"]
    scan = reader.scan()
    found = list(scan)
    assert [(m.physical_offset, m.size, m.topic, m.queue_id, m.record_queue_offset, m.store_timestamp, m.sys_flag,
             m.prepared_transaction_offset) for m in found] == [
        (r["physicalOffset"], r["size"], r["topic"], r["queueId"], r["queueOffset"], r["storeTimestamp"], r["sysFlag"],
         r["preparedTransactionOffset"]) for r in rows
    ]  # fmt: skip
    for message, row in zip(found, rows, strict=True):
        assert message.properties.get("UNIQ_KEY") == row["uniqKey"]
        assert message.properties.get("KEYS") == row["keys"]
        assert message.check_crc()
    assert scan.at == golden_case.expected["maxPhyOffset"]
    wanted = {"torn-flip": "crc", "torn-middle": "crc", "torn-half": ("length", "crc")}.get(golden_case.name, "zero")
    assert scan.reason in wanted
    assert reader.log_range() == (golden_case.expected["minPhyOffset"], golden_case.expected["maxPhyOffset"])
    # Not from the golden file: the classes of 5.3.3 and 4.9.7 misreport it for IPv6 and for short logs.
    assert reader.earliest_message_time == rows[0]["storeTimestamp"]
    middle = rows[len(rows) // 2]["physicalOffset"]
    part = reader.scan(middle, rows[-1]["physicalOffset"])
    assert [m.physical_offset for m in part] == [r["physicalOffset"] for r in rows[len(rows) // 2 : -1]]
    assert part.reason == "limit"


@pytest.mark.parametrize("case", golden_cases("5.3.3"), ids=str)
def test_offset_by_time(case: Case) -> None:
    """Both boundaries of 5.3.3, also in batch queues and behind fillers. (4.9.7 has one only, and asks file times.)"""
    if case.name in ("killed-no-queues", "torn-middle"):
        pytest.skip("these queues are not there, or longer than after Java's recovery")
    with StoreReader(case.store) as reader:
        asked = 0
        for queue in case.expected["queues"]:
            for time_ms, boundary, offset in queue["offsetByTime"]:
                found = reader.offset_by_time(queue["topic"], queue["queueId"], time_ms, BoundaryType[boundary])
                assert found == offset, (queue["topic"], queue["queueId"], time_ms, boundary)
                asked += 1
        assert asked > 20


def test_key_queries(golden_case: Case, reader: StoreReader) -> None:
    """A query gives those of Java's hits that carry the key (Java leaves out hash twins only at the client)."""
    if golden_case.name == "killed-no-queues":
        assert reader.query("KillA", "ka0") == []
        return
    hits = 0
    end = golden_case.expected["maxPhyOffset"]
    for topic, key, count, begin, end_ms, physical in golden_case.expected["index"]:
        carrying = []
        for offset in dict.fromkeys(physical):
            message = reader.get_by_offset(offset)
            # Java's index knows times to the second only; the reader asks the message.
            if message.topic == topic and key in index_entries(message.properties):
                carrying += [offset] * (begin <= message.store_timestamp <= end_ms)
        asked: dict[str, Any] = {"tag": key[2:]} if key.startswith("T#") else {"key": key}
        found = [m.physical_offset for m in reader.query(topic, max_count=1000, begin_ms=begin, end_ms=end_ms, **asked)]
        # Java stops at `count` hits, twins counted; the reader goes on to `count` messages.
        assert set(carrying) <= set(found), (topic, key)
        if len(physical) < count and golden_case.name not in KILLED:
            assert [offset for offset in found if offset in physical] == carrying, (topic, key)
        for offset in found:
            message = reader.get_by_offset(offset)
            assert message.topic == topic
            assert key in index_entries(message.properties)
            assert begin <= message.store_timestamp <= end_ms
            assert golden_case.name == "torn-middle" or offset < end
        newest = reader.query(topic, max_count=1, begin_ms=begin, end_ms=end_ms, **asked)
        assert [m.physical_offset for m in newest] == found[:1]
        hits += len(found)
    assert hits > 5


def test_every_key_of_the_log_is_found(golden_case: Case, reader: StoreReader) -> None:
    """Each key of each record leads back to it."""
    if golden_case.name in KILLED:
        pytest.skip("what was not yet in the index when the writer was killed is not found")
    asked = {}
    for message in reader.scan():
        if message.sys_flag & 0xC != 0xC:
            for key in index_keys(message.properties):
                asked.setdefault((message.topic, key), []).append(message.physical_offset)
    for (topic, key), offsets in asked.items():
        assert sorted(m.physical_offset for m in reader.query(topic, key, 10_000)) == sorted(set(offsets)), (topic, key)


def test_small_files(golden_case: Case, reader: StoreReader) -> None:
    """Checkpoint and abort as they are on disk, before any recovery."""
    wanted = golden_case.expected["checkpointFileBefore"]
    checkpoint = reader.checkpoint
    assert checkpoint.physic_msg_timestamp == wanted["physicMsgTimestamp"]
    assert checkpoint.logics_msg_timestamp == wanted["logicsMsgTimestamp"]
    assert checkpoint.index_msg_timestamp == wanted["indexMsgTimestamp"]
    assert reader.is_dirty == golden_case.expected["abortFileBefore"]


def test_consumer_offsets() -> None:
    """What the consumers of a real broker had committed."""
    (case,) = golden_cases("5.3.3", ("normal-clean",))
    with StoreReader(case.store) as reader:
        import re

        text = (case.store / "config/consumerOffset.json").read_text()
        groups = set(re.findall(r'"([^"@]+)@([^"]+)":', text))
        assert groups
        for topic, group in groups:
            assert reader.consumer_offsets(group)[topic]
        assert reader.consumer_offsets("no such group") == {}


def test_a_filter_of_tags() -> None:
    """Tags select by text, also where queue units hold extension addresses."""
    for name in ("cq-ext", "lmq", "normal-clean"):
        (case,) = golden_cases("5.3.3", (name,))
        with StoreReader(case.store) as reader:
            seen = 0
            for (topic, queue_id), rows in _by_queue(case).items():
                if topic == "SCHEDULE_TOPIC_XXXX":
                    continue
                tags = sorted(
                    {
                        row["properties"]["TAGS"]
                        for row in rows
                        if "TAGS" in row["properties"] and "||" not in row["properties"]["TAGS"]
                    }
                )[:2]
                for expression in [*tags, " || ".join(tags)]:
                    if not expression:
                        continue
                    wanted = [r["cqOffset"] for r in rows if r["properties"].get("TAGS") in expression.split(" || ")]
                    found = reader.get(topic, queue_id, rows[0]["cqOffset"], 1000, tags=expression)
                    assert [m.queue_offset for m in found] == wanted
                    assert found.next_offset == rows[-1]["cqOffset"] + 1
                    seen += len(wanted)
                nothing = reader.get(topic, queue_id, rows[0]["cqOffset"], tags="no such tag")
                assert nothing.status == GetMessageStatus.NO_MATCHED_MESSAGE
                assert not nothing
            assert seen > 20


def test_tags_codes_of_the_extension() -> None:
    """An address in a unit is resolved to the tags code that Java shows."""
    (case,) = golden_cases("5.3.3", ("cq-ext",))
    with StoreReader(case.store) as reader:
        for (topic, queue_id), rows in _by_queue(case).items():
            queue = lab(reader).queues[topic, queue_id]
            codes = [u.tags_code for at in range(0, queue.end(), 1000) for u in queue.units(at, queue.end())]
            assert codes == [row["tagsCode"] for row in rows]


def test_fillers_are_not_messages() -> None:
    """A queue that began above 0 begins there; one that holds nothing but fillers is empty. (Trap 17.)"""
    (case,) = golden_cases("5.3.3", ("ha-slave",))
    with StoreReader(case.store) as reader:
        for queue in case.expected["queues"]:
            assert queue["minOffset"] > 0
            small = reader.get(queue["topic"], queue["queueId"], 0)
            assert small.status == GetMessageStatus.OFFSET_TOO_SMALL
            assert small.next_offset == queue["minOffset"]
    with StoreReader(ENGINE / "data6_L") as reader:
        assert reader.min_offset("TF", 0) == reader.max_offset("TF", 0) == 7
        assert list(reader.messages("TF", 0)) == []
        assert [m.physical_offset for m in reader.messages("TX", 0)] == [0]


@pytest.mark.parametrize("name", sorted(path.name for path in ENGINE.iterdir() if path.is_dir()))
def test_engine_stores(name: str) -> None:
    """Stores of the bare store classes: every queued record is reached through its queue, every key by query."""
    before = _image(ENGINE / name)
    with StoreReader(ENGINE / name) as reader:
        scan = reader.scan()
        records = list(scan)
        assert records
        assert scan.reason == "zero"
        queued = {m.physical_offset for q in reader.queues() for m in reader.messages(q.topic, q.queue_id)}
        undispatched = {m.physical_offset for m in records if m.sys_flag & 0xC in (4, 0xC)}
        filled = {m.physical_offset for m in records if m.topic == "TF"}  # ignored behind fillers, as trap 17 has it
        assert queued == {m.physical_offset for m in records} - undispatched - filled
        for message in records:
            for key in index_keys(message.properties):
                assert message.physical_offset in [m.physical_offset for m in reader.query(message.topic, key, 1000)]
    assert before == _image(ENGINE / name)


def test_batch_offsets() -> None:
    """Any offset inside a batch leads to the whole batch, and the next offset stands behind it. (V-11.)"""
    with StoreReader(ENGINE / "data3_C") as reader:
        assert [(q.min_offset, q.max_offset) for q in reader.queues() if q.topic == "BTopic"] == [(0, 6)]
        for offset, base, following in ((0, 0, 3), (1, 0, 3), (2, 0, 3), (3, 3, 5), (4, 3, 5), (5, 5, 6)):
            result = reader.get("BTopic", 0, offset, 1)
            assert [m.queue_offset for m in result] == [base]
            assert result.next_offset == following
        assert [m.queue_offset for m in reader.get("BTopic", 0, 0, 4)] == [0]
        assert [m.queue_offset for m in reader.get("BTopic", 0, 0, 5)] == [0, 3]
        assert reader.get("BTopic", 0, 6).status == GetMessageStatus.OFFSET_OVERFLOW_ONE
        assert reader.get("BTopic", 0, 7).status == GetMessageStatus.OFFSET_OVERFLOW_BADLY

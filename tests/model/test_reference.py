"""The reference model against real data: every golden store, and the byte vectors of the format.

Room: tests/model. No part of mqfast is imported: a model that is wrong would make a wrong engine look right.
Formats: ``mqfast/store/FORMAT.md``. Data: ``tests/golden/README.md``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import itertools
import struct
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, Case, golden_cases
from reference import (
    CRC_NAME,
    FILLER_SIZE,
    MAGIC_BLANK,
    ROLLBACK,
    SCHEDULE_TOPIC,
    ModelIndexFile,
    ModelQueue,
    ModelStore,
    Record,
    batch_unit,
    blank,
    check,
    crc31,
    crc_property,
    encode_properties,
    ext_record,
    index_hash,
    java_map_order,
    jhash,
    parse_properties,
    scan,
    unit,
)

ENGINE = GOLDEN / "golden-engine"
DAMAGED = ("killed", "killed-no-queues", "torn-flip", "torn-half", "torn-middle")


def log_files(store: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in (store / "commitlog").iterdir()}


def records_of(store: Path, force: bool = False) -> list[tuple[int, int, Record | None]]:
    return list(scan(log_files(store), force_crc_property=force))


def golden_records(case: Case) -> list[tuple[int, int, Record | None]]:
    return records_of(case.store, bool(case.settings.get("forceVerifyPropCRC")))


def engine_record(case: str, position: int) -> bytes:
    data = (ENGINE / case / "commitlog" / f"{0:020}").read_bytes()
    return data[position : position + struct.unpack_from(">i", data, position)[0]]


def host_text(host: tuple[str, int]) -> str:
    # Java spells IPv6 addresses without abbreviation and without leading zeros.
    if ":" not in host[0]:
        return f"{host[0]}|{host[1]}"
    groups = ipaddress.ip_address(host[0]).exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups) + f"|{host[1]}"


# --- every record of every store --------------------------------------------------------------------------------------


def test_log_equals_what_java_dispatches(golden_case: Case) -> None:
    rows: list[list[Any]] = []
    end = 0
    for position, size, record in golden_records(golden_case):
        end = position + size
        if record is None:
            rows.append([position, size, None, "BLANK"])
            continue
        properties = record.property_map
        rows.append(
            [
                record.physical_offset,
                size,
                record.topic,
                record.queue_id,
                record.queue_offset,
                record.tags_code,
                record.store_timestamp,
                record.sys_flag,
                record.prepared_transaction_offset,
                properties.get("UNIQ_KEY"),
                properties.get("KEYS"),
            ]
        )
    assert rows == golden_case.expected["log"]
    assert end == golden_case.expected["maxPhyOffset"]


def test_every_record_encodes_to_its_own_bytes(golden_case: Case) -> None:
    files = log_files(golden_case.store)
    size_of_file = golden_case.settings["mappedFileSizeCommitLog"]
    for position, size, record in golden_records(golden_case):
        start = position - position % size_of_file
        data = files[start][position - start : position - start + size]
        if record is None:
            assert data[:8] == blank(size)
            assert not data[8:].strip(b"\0")
        else:
            assert record.encode() == data
            assert record.physical_offset == position


def test_every_message_reads_as_java_reads_it(golden_case: Case) -> None:
    records = {position: (size, record) for position, size, record in golden_records(golden_case) if record}
    assert len(golden_case.expected["messages"]) > 9
    for row in golden_case.expected["messages"]:
        size, record = records[row["physicalOffset"]]
        properties = record.property_map
        if record.with_crc:
            properties[CRC_NAME.decode()] = crc_property(record.encode()[:-20])[9:19].decode()
        tags_code = record.tags_code
        if str(golden_case) == "4.9.7-killed-no-queues" and record.topic == SCHEDULE_TOPIC:
            # 4.9.7 rebuilds these units before it knows its delay levels, so they get the hash of the tags instead.
            tags_code = jhash(properties["TAGS"])
        found = {
            "physicalOffset": record.physical_offset,
            "size": size,
            "tagsCode": tags_code,
            "recordTopic": None if record.topic == row["topic"] else record.topic,
            "recordQueueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "magic": f"{record.magic:08x}",
            "sysFlag": record.sys_flag,
            "flag": record.flag,
            "bornTimestamp": record.born_timestamp,
            "storeTimestamp": record.store_timestamp,
            "bornHost": host_text(record.born_host),
            "storeHost": host_text(record.store_host),
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_transaction_offset,
            "bodyCRC": crc31(record.body),
            "bodyLength": len(record.body),
            "bodySha256": hashlib.sha256(record.body).hexdigest(),
            "msgId": record.message_id,
            "properties": properties,
        }
        assert {name: row[name] for name in found} == found


def test_every_unit_points_at_its_record(golden_case: Case) -> None:
    """The bytes of the queues, where there are queues on disk, say what the ``messages`` rows say."""
    queues = golden_case.store / "consumequeue"
    seen = 0
    for row in golden_case.expected["messages"]:
        place = queues / row["topic"] / str(row["queueId"])
        position = row["cqOffset"] * 20
        path = place / f"{position - position % golden_case.settings['mappedFileSizeConsumeQueue']:020}"
        if not path.exists():
            continue
        data = path.read_bytes()[position - int(path.name) :][:20]
        if not any(data):  # the process died before this unit was written; Java's recovery writes it
            assert golden_case.name in DAMAGED
            continue
        tags_code = row["tagsCode"]
        if golden_case.settings.get("enableConsumeQueueExt"):
            address = struct.unpack(">q", data[12:])[0] + (1 << 63)
            tags_code = struct.unpack(">q", data[12:])[0]
            ext_bytes = golden_case.settings["mappedFileSizeConsumeQueueExt"]
            ext = golden_case.store / "consumequeue_ext" / row["topic"] / str(row["queueId"])
            raw = (ext / f"{address - address % ext_bytes:020}").read_bytes()[address % ext_bytes :]
            bitmap = raw[20 : 20 + struct.unpack(">h", raw[18:20])[0]]
            assert raw.startswith(ext_record(row["tagsCode"], row["storeTimestamp"], bitmap))
        assert data == unit(row["physicalOffset"], row["size"], tags_code)
        seen += 1
    assert seen or golden_case.name in ("batch-cq", "killed-no-queues")


def test_batch_queue_units() -> None:
    (case,) = golden_cases("5.3.3", ("batch-cq",))
    per_file = case.settings["mapperFileSizeBatchConsumeQueue"] // 46
    for queue in case.expected["queues"]:
        rows = [
            r for r in case.expected["messages"] if (r["topic"], r["queueId"]) == (queue["topic"], queue["queueId"])
        ]
        folder = case.store / "batchconsumequeue" / queue["topic"] / str(queue["queueId"])
        raw = b"".join(path.read_bytes()[: per_file * 46] for path in sorted(folder.iterdir()))
        units = [
            batch_unit(
                r["physicalOffset"], r["size"], r["tagsCode"], r["storeTimestamp"], r["cqOffset"], r.get("batchNum", 1)
            )
            for r in rows
        ]
        assert len(units) == queue["units"]
        assert raw.rstrip(b"\0") == b"".join(units).rstrip(b"\0")


# --- whole stores, put again ------------------------------------------------------------------------------------------


def put_copy(case: Case) -> ModelStore:
    """Put every record of the recovered log into a fresh model at its own time; the model works out the rest."""
    sizes = case.settings
    model = ModelStore(
        commit_log_bytes=sizes["mappedFileSizeCommitLog"],
        consume_queue_bytes=sizes["mappedFileSizeConsumeQueue"],
        slots=sizes["maxHashSlotNum"],
        entries=sizes["maxIndexNum"],
        with_crc=bool(sizes.get("enabledAppendPropCRC")),
        multi_dispatch=bool(sizes.get("enableMultiDispatch")),
        first_offset=case.expected["minPhyOffset"],
        release=case.release,
    )
    given = case.name in ("ha-slave", "batch-cq")  # these begin above 0, or count in batches
    records = [(position, record) for position, _, record in golden_records(case) if record is not None]

    def put(row: tuple[int, Record]) -> tuple[str, int, int]:
        """The elements of a batch went through one put, at one time; all others by themselves."""
        position, record = row
        return record.topic, record.queue_id, record.store_timestamp if record.topic == "BatchTopic" else position

    for _, rows in itertools.groupby(records, put):
        group = list(rows)
        plain = [
            dataclasses.replace(record, physical_offset=-1, queue_offset=-1, with_crc=False) for _, record in group
        ]
        done = (
            model.put_batch(plain)
            if len(plain) > 1
            else [model.put(plain[0], group[0][1].queue_offset if given else None)]
        )
        assert [record.physical_offset for record in done] == [position for position, _ in group]
    return model


@pytest.mark.parametrize("case", [case for case in golden_cases() if case.name not in DAMAGED], ids=str)
def test_put_again_gives_the_same_files(case: Case) -> None:
    rooms = ["commitlog", "consumequeue", "index"]
    if case.name in ("batch-cq", "cq-ext"):
        rooms.remove("consumequeue")  # other units there: compared one by one above
    assert put_copy(case).differences(case.store, rooms) == []


@pytest.mark.parametrize("case", golden_cases(), ids=str)
def test_offsets_and_searches_by_time(case: Case) -> None:
    if case.name == "batch-cq":
        pytest.skip("the model has no search in batch queues")
    model = put_copy(case)
    for queue in case.expected["queues"]:
        where = (queue["topic"], queue["queueId"])
        assert model.min_offset(*where) == queue["minOffset"]
        assert model.max_offset(*where) == queue["maxOffset"]
        if queue["units"]:
            assert model.queues[where].max_physical == queue["maxPhysicOffset"]
        for time_ms, boundary, offset in queue["offsetByTime"]:
            if boundary != "NONE":  # 4.x searches by file times, which the model does not have
                assert model.offset_by_time(*where, time_ms, boundary) == offset, (where, time_ms, boundary)


@pytest.mark.parametrize("case", [c for c in golden_cases() if c.name not in DAMAGED or "no-queues" in c.name], ids=str)
def test_index_queries(case: Case) -> None:
    model = put_copy(case)
    assert len(case.expected["index"]) > 9
    for topic, key, limit, begin_ms, end_ms, offsets in case.expected["index"]:
        assert model.query_offsets(topic, key, limit, begin_ms, end_ms) == offsets, (topic, key)


@pytest.mark.parametrize("case", [case for case in golden_cases() if case.name not in DAMAGED], ids=str)
def test_index_files_from_disk_answer_the_same(case: Case) -> None:
    model = ModelStore()
    sizes = case.settings["maxHashSlotNum"], case.settings["maxIndexNum"]
    model.index = [ModelIndexFile(*sizes, path.read_bytes()) for path in sorted((case.store / "index").iterdir())]
    for topic, key, limit, begin_ms, end_ms, offsets in case.expected["index"]:
        assert model.query_offsets(topic, key, limit, begin_ms, end_ms) == offsets


# --- byte vectors -----------------------------------------------------------------------------------------------------

V1_HEX = """
0000008bdaa320a73610a686000000011122334400000000000000000000000000000000000000000000018bcfe568000a010203000015b3000001a1
f9b8bfa8c0a8000100002a9f0000000300000000000000000000000568656c6c6f09546f7069635465737400224b455953016b31206b320254414753
015461674102554e49515f4b455901554b3102"""
V5_HEX = """
00000000000000007fffffff000000000000000000000000000000007fffffff0000000000000000000000000000000000000080000000000027a807"""
V6_HEX = """
00000080daa320a70cdc1683000000001122334400000000000000070000000000000000000000000000018bcfe568000a010203000015b3000001a1
f9b8d4ffc0a8000100002a9f000000030000000000000000000000017806546f70696350001e544147530154616741025f5f43524333322301313036
3334333933373102"""
V7_HEX = """
0000007edaa320a76b643b840000000011223344000000000000000000000000000001a2000000100000018bcfe5680020010db80000000000000000
000000010000004d000001a1f9b8d507c0a8000100002a9f000000030000000000000000000000017602563600145f5f435243333223013033303334
313637393002"""
V9_HEX = """
0000006bdaa320a730cb2b76000000000000000700000000000000000000000000000000000000000000018bcfe568000a010203000015b3000001a1
f9b9f4b6c0a8000100002a9f000000000000000000000000000000026230064e546f70696300085441475301543002"""
V11_HEX = """
0000000000000141000000f10000000000000000000001a1f9b9f56000000000000000000003ffffffff000000000000000000000232000000d10000
000000000000000001a1f9b9f56100000000000000030002ffffffff0000000000000000000003030000006c000000000027a807000001a1f9b9f561
00000000000000050001ffffffff00000000"""

COMMON: dict[str, Any] = {
    "flag": 0x11223344,
    "born_timestamp": 1700000000000,
    "born_host": ("10.1.2.3", 5555),
    "store_host": ("192.168.0.1", 10911),
    "reconsume_times": 3,
}
V1 = Record(
    "TopicTest",
    b"hello",
    1,
    encode_properties({"KEYS": "k1 k2", "TAGS": "TagA", "UNIQ_KEY": "UK1"}),
    store_timestamp=1795190996904,
    **COMMON,
)
TAG_A = encode_properties({"TAGS": "TagA"})
V6 = Record("TopicP", b"x", 0, TAG_A, queue_offset=7, store_timestamp=1795191002367, with_crc=True, **COMMON)
V7 = Record(
    "V6", b"v", sys_flag=0x10, physical_offset=418, store_timestamp=1795191002375, with_crc=True,
    **{**COMMON, "born_host": ("2001:db8::1", 77)},
)  # fmt: skip


def test_v1_record_version_1() -> None:
    assert V1.encode() == bytes.fromhex(V1_HEX) == engine_record("data_A", 0)
    assert crc31(b"hello") == 0x3610A686
    assert check(V1.encode()) == (139, True, V1)


def test_v2_unit() -> None:
    assert unit(0, 139, V1.tags_code).hex() == "00000000000000000000008b000000000027a807"


def test_v3_index_file() -> None:
    model = ModelStore(slots=10, entries=8, release="5.3.3")
    model.put(V1)
    data = bytes(model.index[0].data)
    assert struct.unpack_from(">qqqqii", data) == (1795190996904, 1795190996904, 0, 0, 3, 4)
    assert struct.unpack_from(">10i", data, 40) == (0, 0, 0, 0, 2, 3, 0, 1, 0, 0)
    entries = [struct.unpack_from(">iqii", data, 80 + 20 * n) for n in range(4)]
    assert entries == [(0, 0, 0, 0), (85106457, 0, 0, 0), (2746024, 0, 0, 0), (2746025, 0, 0, 0)]


def test_an_entry_for_the_tags() -> None:
    """Since 5.5, behind those of the keys, unless the transaction was rolled back."""
    model = ModelStore(slots=10, entries=8)
    properties = encode_properties({"TAGS": "a || b", "KEYS": "k1 k2", "UNIQ_KEY": "u"})
    model.put(Record("T", properties=properties))
    model.put(Record("T", properties=properties, sys_flag=ROLLBACK))
    entries = [struct.unpack_from(">iqii", model.index[0].data, 80 + 20 * n) for n in range(1, 6)]
    assert [row[0] for row in entries] == [*map(index_hash, ("T#u", "T#k1", "T#k2", "T#T#a || b")), 0]
    assert model.query_offsets("T", "T#a || b", 9, 0, 1) == [0]


def test_v4_blank_tail() -> None:
    model = ModelStore(commit_log_bytes=1024, consume_queue_bytes=100, slots=10, entries=8, release="5.3.3")
    for _, _, record in records_of(ENGINE / "data_A"):
        if record is not None:
            model.put(record)
    assert bytes(model.log[0][979:]) == bytes.fromhex("0000002dcbd43194") + bytes(37)
    assert (model.records[1024][0].queue_offset, model.end) == (5, 1234)
    assert model.differences(ENGINE / "data_A") == []


def test_v5_pre_blank() -> None:
    queue = ModelQueue(100)
    queue.put(7, 0, 128, jhash("TagA"))
    assert queue.files() == {100: bytes.fromhex(V5_HEX).ljust(100, b"\0")}
    assert (queue.min_offset, queue.max_offset) == (7, 8)


def test_v6_v7_crc_property() -> None:
    assert V6.encode() == bytes.fromhex(V6_HEX) == engine_record("data_B", 0)
    assert crc31(V6.encode()[:-20]) == 1739343601
    assert V7.encode() == bytes.fromhex(V7_HEX) == engine_record("data_B", 418)
    for record in (V6, V7):
        assert check(record.encode(), force_crc_property=True) == (len(record.encode()), True, record)


def test_v8_record_version_2() -> None:
    data = engine_record("data_B", 544)
    size, good, record = check(data)
    assert (size, good, len(data)) == (0xF3, True, 243)
    assert record is not None
    assert record.topic == "%RETRY%" + "a" * 123
    assert (record.magic, record.body, record.encode()) == (0xDAA320AB, b"2", data)


def test_v9_classic_batch() -> None:
    model = ModelStore(commit_log_bytes=1024, consume_queue_bytes=100, slots=10, entries=8)
    element = Record("NTopic", **{**COMMON, "flag": 7, "reconsume_times": 0}, store_timestamp=1795191076022)
    tags = [encode_properties({"TAGS": f"T{i}"}) for i in range(3)]
    done = model.put_batch([dataclasses.replace(element, body=b"b%d" % i, properties=tags[i]) for i in range(3)])
    assert done[0].encode() == bytes.fromhex(V9_HEX)
    data = (ENGINE / "data3_C" / "commitlog" / f"{0:020}").read_bytes()
    assert bytes(model.log[0][:321]) == data[:321]


def test_v10_inner_batch_record() -> None:
    data = engine_record("data3_C", 321)
    size, good, record = check(data)
    assert record is not None
    assert (size, good, record.sys_flag) == (241, True, 0xC0)
    assert record.property_map == {"INNER_NUM": "3", "CLUSTER": "DefaultCluster", "INNER_BASE": "0"}
    element = bytes.fromhex("0000002000000000000000000000000700000002623000085441475301543002")
    assert len(element) == 32
    assert record.body.startswith(element)
    assert record.encode() == data


def test_v11_batch_queue_units() -> None:
    rows = [
        (321, 241, 0, 1795191076192, 0, 3),
        (562, 209, 0, 1795191076193, 3, 2),
        (771, 108, 2598919, 1795191076193, 5, 1),
    ]
    raw = b"".join(batch_unit(*row) for row in rows)
    assert raw == bytes.fromhex(V11_HEX)
    assert (ENGINE / "data3_C/batchconsumequeue/BTopic/0" / f"{0:020}").read_bytes() == raw.ljust(184, b"\0")


def test_v12_extension() -> None:
    folder = ENGINE / "data3_G/consumequeue_ext/TE/0"
    data = (folder / f"{0:020}").read_bytes()
    assert data[:20] == ext_record(2598919, 1795191093609) == bytes.fromhex("0014000000000027a807000001a1f9ba39690000")
    assert data[60:62] == b"\xff\xff"
    units = (ENGINE / "data3_G/consumequeue/TE/0" / f"{0:020}").read_bytes()
    addresses = [struct.unpack_from(">q", units, 12 + 20 * i)[0] + (1 << 63) for i in range(4)]
    assert addresses == [0, 0x14, 0x28, 0x40]


def test_v13_first_entry_of_a_follow_up_index_file() -> None:
    """Its time difference is against the end of the file before, although it opens a file of its own."""
    model = ModelStore(commit_log_bytes=1024, consume_queue_bytes=100, slots=10, entries=4, release="5.3.3")
    for _, _, record in records_of(ENGINE / "data3_D"):
        assert record is not None
        model.put(record)
    assert model.differences(ENGINE / "data3_D") == []
    data = bytes(model.index[1].data)
    assert struct.unpack_from(">qqqqii", data) == (1795191084371, 1795191085472, 306, 408, 2, 3)
    assert struct.unpack_from(">iqii", data, 40 + 40 + 20) == (79787510, 306, 1, 0)


def test_v14_light_queues() -> None:
    model = ModelStore(
        commit_log_bytes=1024, consume_queue_bytes=100, slots=10, entries=8, multi_dispatch=True, release="5.3.3"
    )
    for _, _, record in records_of(ENGINE / "data3_J"):
        assert record is not None
        model.put(record)
    first = model.records[0][0]
    wanted = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x010,0\x02"
    assert wanted in first.properties
    assert {("%LMQ%a", 0), ("%LMQ%b", 0)} < set(model.queues)
    assert model.differences(ENGINE / "data3_J") == []


def test_v15_timer_blank_is_the_log_blank() -> None:
    data = (ENGINE / "data4_H/timerlog" / f"{0:020}").read_bytes()
    fields = [struct.unpack_from(">iqiqiqiiq", data, at) for at in (0, 52)]
    assert [row[:3] for row in fields] == [(52, -1, 1), (52, 0, 1)]
    assert fields[0][7] == jhash("RT") == 2626
    assert struct.unpack_from(">iqI", data, 104) == (23, 0, MAGIC_BLANK)


def test_v17_hashes() -> None:
    words = {
        "TagA": 2598919,
        "TagB": 2598920,
        "*": 42,
        "标签": 857175,
        "\U0001f600": 1772899,
        "TopicTest-0": 1247014820,
    }
    assert {word: jhash(word) for word in words} == words
    assert jhash("TopicTest#key1") == -1655984460
    assert index_hash("TopicTest#key1") % 5_000_000 == 984460
    assert crc31(b"123456789") == 1274296614
    assert jhash("polygenelubricants") == -(1 << 31)
    assert index_hash("polygenelubricants") == 0


# --- rules that no store on disk shows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "rolls"), [(9, False), (8, False), (7, True), (0, True)], ids=["9 left", "8 left", "7 left", "0 left"]
)
def test_a_record_leaves_eight_bytes_or_goes_to_the_next_file(left: int, rolls: bool) -> None:
    model = ModelStore(commit_log_bytes=1024)
    base = len(Record("T").encode())
    model.put(Record("T", bytes(1024 - base - base - left)))
    second = model.put(Record("T"))
    assert (second.physical_offset == 1024) is rolls
    assert second.queue_offset == 1


def test_search_by_time_with_equal_times() -> None:
    model = ModelStore()
    for time_ms in (0, 3, 24, 24, 45, 45, 66, 68):
        model.put(Record("T", store_timestamp=1000 + time_ms))
    asked = [23, 24, 25, 69, -1]
    lower = [model.offset_by_time("T", 0, 1000 + time_ms, "LOWER") for time_ms in asked]
    upper = [model.offset_by_time("T", 0, 1000 + time_ms, "UPPER") for time_ms in asked]
    assert (lower, upper) == ([2, 2, 4, 8, 0], [1, 3, 3, 7, 0])


def test_damage_is_told_apart() -> None:
    good = V1.encode()
    assert check(good[:-1])[:2] == (-1, False)
    assert check(bytes(100))[:2] == (-1, False)
    assert check(blank(45) + bytes(37)) == (0, True, None)
    flipped = bytearray(good)
    flipped[good.index(b"hello")] ^= 1
    assert check(bytes(flipped))[:2] == (-1, False)
    assert check(bytes(flipped), check_crc=False)[:2] == (139, True)
    longer = struct.pack(">i", 140) + good[4:] + b"\0"
    assert check(longer)[:2] == (140, False)


def test_properties_lose_what_java_loses() -> None:
    raw = b"a\x011\x02b\x01\x02\x01x\x02c\x023\x02a\x012\x01z\x02d\x019"
    assert parse_properties(raw) == {"a": "2\x01z", "d": "9"}


@pytest.mark.parametrize("case", golden_cases("5.3.3", ("normal-clean",)), ids=str)
def test_property_order_is_that_of_a_java_map(case: Case) -> None:
    """Strings that the broker built from its map come in map order; what a client or a batch sent verbatim need not."""
    ordered = 0
    for _, _, record in golden_records(case):
        if record is not None:
            names = list(record.property_map)
            ordered += java_map_order(names) == names or java_map_order(names, 16) == names
    assert ordered > 300


def test_fillers_are_no_messages() -> None:
    (case,) = golden_cases("5.3.3", ("ha-slave",))
    model = put_copy(case)
    assert model.queues["PlainA", 0].units[24] == (0, FILLER_SIZE, 0) or model.min_offset("PlainA", 0) == 25
    assert model.get("PlainA", 0, 0).status == "OFFSET_TOO_SMALL"
    assert model.get("PlainA", 0, 25).records[0].physical_offset == 33657

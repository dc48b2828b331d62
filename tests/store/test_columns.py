"""Columns of a GetResult: each value equals the message's, through numpy and through Arrow, whatever the bytes are."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest
from conftest import Case, copy_of

import mqfast
from mqfast.store.get.get_columns import FIXED_FIELDS

TOPIC = "columns"


def filled(path: Path, count: int = 200, **config: Any) -> mqfast.MessageStore:
    # without a window: its pages would count as memory of the process while they are made
    store = mqfast.open(str(path), prefault_window_bytes=0, **config)
    for i in range(count):
        store.put(
            TOPIC,
            b"%d" % i * (i % 7),
            tags=(None, "A", "tägs", "标签")[i % 4],
            keys=f"k{i} ü" if i % 3 else None,
            properties={f"p{j}": f"v{i}😀" for j in range(i % 5)},
        )
    return store


def everything(store: mqfast.MessageStore, topic: str = TOPIC, queue_id: int = 0) -> Any:
    return store.get(topic, queue_id, 0, max_count=10**6, max_bytes=1 << 30)


def check_numpy(result: Any) -> None:
    array = result.to_numpy()
    assert array.shape == (len(result),)
    assert [(name, array.dtype[name].str[1:]) for name in array.dtype.names] == list(FIXED_FIELDS)
    for row, message in zip(array, result, strict=True):
        expected = {
            "queue_offset": message.queue_offset,
            "physical_offset": message.physical_offset,
            "record_queue_offset": message.record_queue_offset,
            "born_timestamp": message.born_timestamp,
            "store_timestamp": message.store_timestamp,
            "prepared_transaction_offset": message.prepared_transaction_offset,
            "size": message.size,
            "queue_id": message.queue_id,
            "flag": message.flag,
            "sys_flag": message.sys_flag,
            "body_crc": message.body_crc,
            "reconsume_times": message.reconsume_times,
            "body_bytes": len(message.body),
            "topic_bytes": len(message.topic.encode()),
            "properties_bytes": len(message.properties_bytes),
            "version": 2 if message.magic == 0xDAA320AB else 1,
        }
        assert dict(zip(array.dtype.names, row.tolist(), strict=True)) == expected


def check_arrow(result: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    batch = pa.record_batch(result)
    batch.validate(full=True)
    assert batch.num_rows == len(result)
    for row, message in zip(batch.to_pylist(), result, strict=True):
        properties = message.properties
        born, stored = (int(row.pop(name).timestamp() * 1000 + 0.5) for name in ("born_timestamp", "store_timestamp"))
        assert (born, stored) == (message.born_timestamp, message.store_timestamp)
        assert row.pop("properties") == list(properties.items())
        assert row == {
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "physical_offset": message.physical_offset,
            "size": message.size,
            "flag": message.flag,
            "sys_flag": message.sys_flag,
            "born_host": message.born_host,
            "store_host": message.store_host,
            "reconsume_times": message.reconsume_times,
            "prepared_transaction_offset": message.prepared_transaction_offset,
            "body_crc": message.body_crc,
            "body": bytes(message.body),
            "tags": properties.get("TAGS"),
            "keys": properties.get("KEYS"),
        }


def test_columns_equal_the_messages(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        result = everything(store)
        assert len(result) == 200
        check_numpy(result)
        check_arrow(result)
        page = store.get(TOPIC, 0, 50, max_count=10, tags="A")
        check_numpy(page)
        check_arrow(page)


def test_golden_columns_equal_the_messages(golden_case: Case, tmp_path: Path) -> None:
    seen = 0
    with mqfast.open(str(copy_of(golden_case, tmp_path))) as store:
        for row in golden_case.expected["queues"]:
            result = store.get(row["topic"], row["queueId"], row["minOffset"], max_count=10**5)
            check_numpy(result)
            check_arrow(result)
            seen += len(result)
    assert seen == len(golden_case.expected["messages"])


def test_no_message(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with filled(tmp_path, 1) as store:
        result = store.get(TOPIC, 0, 1)
        assert len(result) == 0
        assert result.to_numpy().shape == (0,)
        batch = pa.record_batch(result)
        batch.validate(full=True)
        assert batch.num_rows == 0
        assert batch.schema == pa.schema(result)
        assert pa.RecordBatchReader.from_stream(result).read_all().num_rows == 0
        empty = result.to_arrow()
        empty.validate(full=True)
        assert empty == batch


def test_schema(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with filled(tmp_path, 3) as store:
        result = everything(store)
        schema = pa.schema(result)
        utf8, i32, i64, time = pa.string(), pa.int32(), pa.int64(), pa.timestamp("ms", "UTC")
        assert {field.name: field.type for field in schema} == {
            "topic": utf8,
            "queue_id": i32,
            "queue_offset": i64,
            "physical_offset": i64,
            "size": i32,
            "flag": i32,
            "sys_flag": i32,
            "born_timestamp": time,
            "store_timestamp": time,
            "born_host": utf8,
            "store_host": utf8,
            "reconsume_times": i32,
            "prepared_transaction_offset": i64,
            "body_crc": i32,
            "body": pa.binary(),
            "tags": utf8,
            "keys": utf8,
            "properties": pa.map_(utf8, utf8),
        }
        assert [field.name for field in schema if field.nullable] == ["tags", "keys"]
        assert pa.record_batch(result).schema == schema
        reader = pa.RecordBatchReader.from_stream(result)
        assert reader.schema == schema
        assert reader.read_next_batch() == pa.record_batch(result)
        with pytest.raises(StopIteration):
            reader.read_next_batch()


def test_bodies_as_large_binary_when_asked_for(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with filled(tmp_path, 20) as store:
        result = everything(store)
        plain = pa.record_batch(result)
        index = plain.schema.get_field_index("body")
        wanted = plain.schema.set(index, pa.field("body", pa.large_binary(), nullable=False))
        asked = wanted.__arrow_c_schema__()
        batch = pa.RecordBatch._import_from_c_capsule(*result.__arrow_c_array__(asked))
        batch.validate(full=True)
        assert batch.schema == wanted
        assert batch.to_pylist() == plain.to_pylist()
        reader = pa.RecordBatchReader._import_from_c_capsule(result.__arrow_c_stream__(asked))
        assert reader.schema == wanted
        assert reader.read_all().to_batches() == [batch]
        # what cannot be had is left to the consumer
        other = pa.schema([("topic", pa.int8())]).__arrow_c_schema__()
        assert pa.RecordBatch._import_from_c_capsule(*result.__arrow_c_array__(other)) == plain


@pytest.mark.parametrize("wrong", [5, "arrow_schema", object()], ids=["int", "str", "object"])
def test_requested_schema_must_be_a_capsule(wrong: object, tmp_path: Path) -> None:
    with filled(tmp_path, 1) as store:
        result = everything(store)
        for method in (result.__arrow_c_array__, result.__arrow_c_stream__):
            with pytest.raises(TypeError, match="arrow_schema"):
                method(wrong)
        with pytest.raises(TypeError, match="arrow_schema"):
            result.__arrow_c_array__(result.__arrow_c_stream__())


def test_columns_outlive_result_store_and_files(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    store = filled(tmp_path / "s", 100)
    result = everything(store)
    bodies, offsets = result.bodies(), [message.physical_offset for message in result]
    array, batch = result.to_numpy(), pa.record_batch(result)
    reader = pa.RecordBatchReader.from_stream(result)
    del result
    store.close()
    for path in (tmp_path / "s/commitlog").iterdir():
        path.write_bytes(b"")
    gc.collect()
    assert array["physical_offset"].tolist() == offsets
    assert batch["body"].to_pylist() == bodies
    table = reader.read_all()
    table.validate(full=True)
    assert table["body"].to_pylist() == bodies
    child = batch["properties"]
    del batch
    gc.collect()
    child.validate(full=True)
    assert dict(child[4].as_py())["p0"] == "v4😀"


def test_to_arrow_is_the_record_batch_of_the_result(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with filled(tmp_path, 200) as store:
        for result in (everything(store), store.get(TOPIC, 0, 50, max_count=10, tags="A"), store.get(TOPIC, 0, 7, 1)):
            batch = result.to_arrow()
            batch.validate(full=True)
            assert batch.schema == pa.schema(result)
            assert batch == pa.record_batch(result)
            assert batch.num_rows == len(result)
        bodies = result.bodies()
    del result
    gc.collect()
    assert batch["body"].to_pylist() == bodies


class ArrowArray(ctypes.Structure):
    """The C struct, of which a consumer may move a child away."""


RELEASE = ctypes.CFUNCTYPE(None, ctypes.POINTER(ArrowArray))
ArrowArray._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", ctypes.c_void_p),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


@pytest.mark.parametrize("name", ["queue_offset", "body", "tags", "properties"])
def test_a_column_that_was_moved_away_outlives_the_others(name: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    with filled(tmp_path, 100) as store:
        result = everything(store)
        expected = pa.record_batch(result).column(name)
        place = pa.schema(result).get_field_index(name)

        def moved() -> Any:
            _, capsule = result.__arrow_c_array__()
            batch = ArrowArray.from_address(address(capsule, b"arrow_array"))
            child = batch.children[place].contents
            column = ArrowArray()
            ctypes.pointer(column)[0] = child
            child.release = None
            RELEASE(batch.release)(batch)
            assert batch.release is None
            return pa.Array._import_from_c(ctypes.addressof(column), expected.type)

        column = moved()
        column.validate(full=True)
        assert column == expected
        assert least_growth(moved, 150) < 1 << 20  # a batch has 20 kB


def patched(tmp_path: Path, *changes: tuple[bytes, bytes]) -> Any:
    """A result over a log some of whose bytes were changed on disk (no CRC covers topic and properties)."""
    store = mqfast.open(str(tmp_path), mapped_file_bytes_commit_log=1 << 20)
    names = {f"name{j:03}": "value" for j in range(5)}
    store.put("patched", b"body", tags="tagtag", keys="keykey", properties=names)
    store.put("patched", b"body", properties={f"name{j:03}": "value" for j in range(100)})
    store.close()
    (log,) = (path for path in (tmp_path / "commitlog").iterdir() if path.stat().st_blocks)
    with log.open("r+b") as file:
        head = file.read(8192)
        for old, new in changes:
            assert old in head
            assert len(old) == len(new)
            head = head.replace(old, new)
        file.seek(0)
        file.write(head)
    with mqfast.open(str(tmp_path)) as store:
        return everything(store, "patched")


def test_text_that_is_not_utf8_is_repaired(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    surrogate, overlong, above, cut = b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe6\xa0"
    result = patched(
        tmp_path,
        (b"tagtag", surrogate + b"tag"),
        (b"keykey", above + overlong),
        (b"name001\x01value", b"n" + cut + b"e001\x01val\xff\xfe"),
    )
    assert len(result) == 2
    check_arrow(result)
    row = pa.record_batch(result).to_pylist()[0]
    assert row["tags"] == "\ufffd" * 3 + "tag"
    assert row["keys"] == "\ufffd" * 6
    assert ("n\ufffde001", "val\ufffd\ufffd") in row["properties"]


@pytest.mark.parametrize("first", ["name000", "name004", "name002"])
def test_of_equal_names_the_last_value_counts(first: str, tmp_path: Path) -> None:
    old = first.encode() + b"\x01value"
    result = patched(tmp_path, (old, b"name003\x01other"))
    assert len(result) == 2
    check_arrow(result)


def test_pairs_without_a_name_or_a_value_do_not_count(tmp_path: Path) -> None:
    result = patched(
        tmp_path,
        (b"name000\x01value", b"\x01ame000\x01value"),
        (b"name001\x01value", b"name001value\x01"),
        (b"name002\x01value", b"name002\x01\x02alue"),
        (b"name004\x01value", b"name004\x01\x01alue"),
    )
    check_arrow(result)
    assert result[0].properties["name004"] == "\x01alue"


def test_many_properties(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with mqfast.open(str(tmp_path)) as store:
        for count in (0, 1, 63, 64, 65, 500):
            store.put(TOPIC, b"", properties={f"n{j}": str(j) for j in range(count)})
        result = everything(store)
        check_arrow(result)
        assert [len(row) for row in pa.record_batch(result)["properties"].to_pylist()] == [0, 1, 63, 64, 65, 500]


def test_hosts_of_both_kinds(tmp_path: Path) -> None:
    with mqfast.open(str(tmp_path)) as store:
        for host in ("1.2.3.4:5", "1.2.3.4:5", "[::1]:7", "255.255.255.255:65535", "[2001:db8::ff]:1", "1.2.3.4:5"):
            store.put(TOPIC, b"x", born_host=host)
        result = everything(store)
        assert len(result) == 6
        check_numpy(result)
        check_arrow(result)


def test_runs_of_equal_hosts(tmp_path: Path) -> None:
    """Equal values are counted, and put when another one comes or at the end; short texts and long ones."""
    hosts = ("1.2.3.4:5", "1.2.3.4:6", "[2001:db8::1234:5678:9abc]:1", "[2001:db8::1234:5678:9abd]:1", "9.9.9.9:9")
    with mqfast.open(str(tmp_path)) as store:
        for length in (1, 2, 3, 17):
            for host in hosts:
                for _ in range(length):
                    store.put(TOPIC, b"x", born_host=host)
        result = everything(store)
        assert len(result) == len(hosts) * 23
        check_arrow(result)


def test_topics_of_all_lengths(tmp_path: Path) -> None:
    """A light queue has records of several topics, which differ in their first or their last character."""
    stems = tuple("abcdefghijklmnopq"[:length] for length in (1, 2, 3, 4, 7, 8, 15, 16, 17))
    topics = [topic for stem in stems for topic in (stem, stem, stem[:-1] + "Z", "Z" + stem[1:], stem)]
    with mqfast.open(str(tmp_path), enable_lmq=True, enable_multi_dispatch=True) as store:
        for topic in topics:
            store.put(topic, b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%all"})
        result = store.get("%LMQ%all", 0, 0, 1000)
        assert [message.topic for message in result] == topics
        check_arrow(result)


def own_bytes() -> int:
    """Resident bytes without those of mapped files: what the store's threads populate does not count."""
    gc.collect()
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))


def least_growth(turn: Callable[[], None], turns: int, rounds: int = 4) -> int:
    """Bytes by which the process grew in its quietest round: a leak shows in each, a larger arena in one."""
    growths = []
    for _ in range(rounds):
        before = own_bytes()
        for _ in range(turns):
            turn()
        growths.append(own_bytes() - before)
    return min(growths)


def test_nothing_leaks(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with mqfast.open(str(tmp_path)) as store:
        for i in range(64):
            store.put(TOPIC, b"b" * 4096, tags="A", keys="K", properties={"p": f"v{i}"})
        result = everything(store)
        assert len(result) == 64

        def turn() -> None:
            pa.record_batch(result)
            result.to_arrow()
            pa.RecordBatchReader.from_stream(result).read_all()
            pa.RecordBatchReader.from_stream(result)  # dropped with its batch unread
            pa.schema(result)
            result.__arrow_c_schema__()  # capsules that nobody takes
            result.__arrow_c_array__()
            result.__arrow_c_stream__()
            result.to_numpy()

        assert least_growth(turn, 30) < 1 << 20  # a leak of one batch (300 kB) a turn would be 9 MB


def test_failures_leak_nothing_either(tmp_path: Path) -> None:
    with filled(tmp_path, 64) as store:
        result = everything(store)
        capsule = result.__arrow_c_stream__()

        def turn() -> None:
            for method in (result.__arrow_c_array__, result.__arrow_c_stream__):
                with pytest.raises(TypeError):
                    method(capsule)

        assert least_growth(turn, 1000) < 1 << 19


def run_without_pyarrow(script: str, path: Path) -> str:
    """What a script prints that has a result of 64 messages of 4 KiB and no pyarrow yet."""
    head = """
import resource, sys, types, mqfast
store = mqfast.open(sys.argv[1], prefault_window_bytes=0)
store.put_many("t", [b"b" * 4096] * 64)
result = store.get("t", 0, 0, 64)
assert len(result) == 64
"""
    done = subprocess.run([sys.executable, "-c", head + script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_to_arrow_says_what_it_needs(tmp_path: Path) -> None:
    script = """
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "pyarrow":
            raise ImportError("not installed")
sys.meta_path.insert(0, Without())
try:
    result.to_arrow()
except ImportError as error:
    print(error)
print(result.__arrow_c_array__() is not None)
"""
    assert run_without_pyarrow(script, tmp_path) == "to_arrow() needs pyarrow (pip install pyarrow)\nTrue\n"


def test_an_import_that_fails_leaves_nothing(tmp_path: Path) -> None:
    script = """
def fails(address, schema):
    raise RuntimeError("not taken")
batches = types.SimpleNamespace(_import_from_c=fails)
sys.modules["pyarrow"] = types.SimpleNamespace(RecordBatch=batches, schema=lambda result: "schema")
for turn in range(1000):
    if turn == 100:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        result.to_arrow()
    except RuntimeError as error:
        assert str(error) == "not taken"
    else:
        raise AssertionError("no error")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    assert int(run_without_pyarrow(script, tmp_path)) < 20_000  # KiB (macOS: bytes); a leak would be 230 MB


def test_importing_the_columns_imports_no_numpy() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, mqfast.store.get.get_columns; print({'numpy', 'pyarrow'} & set(sys.modules))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"


def test_numpy_columns_are_the_callers_own(tmp_path: Path) -> None:
    with filled(tmp_path, 10) as store:
        result = everything(store)
        array = result.to_numpy()
        array["physical_offset"] = -1
        assert isinstance(array, numpy.ndarray)
        assert array.flags.writeable
        assert result[0].physical_offset == 0
        assert result.to_numpy()["physical_offset"][0] == 0

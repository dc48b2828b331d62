"""put_many of whole arrays: rows of numpy, fixed-size elements, Arrow arrays and streams; as a list of bytes."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from laboratory import open_still

import mqfast
from mqfast.errors import MessageIllegal, MessageTooLarge

SMALL: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 16, "prefault_window_bytes": 0, "preallocate_files": 0}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[mqfast.MessageStore]:
    with open_still(tmp_path / "store", **SMALL) as opened:
        yield opened


def _stored(store: mqfast.MessageStore, bodies: Any, topic: str = "T") -> list[bytes]:
    begin = store.max_offset(topic, 0)
    result = store.put_many(topic, bodies)
    found = [bytes(message.body) for message in store.get(topic, 0, begin, 10_000)]
    assert len(found) == len(result)
    assert [one.queue_offset for one in result] == list(range(begin, begin + len(found)))
    for message in store.get(topic, 0, begin, 10_000):
        assert message.check_crc()
    return found


def test_rows_of_numpy(store: mqfast.MessageStore) -> None:
    numpy = pytest.importorskip("numpy")
    rows = numpy.arange(1500 * 64, dtype=numpy.uint32).astype(numpy.uint8).reshape(1500, 64)
    assert _stored(store, rows) == [row.tobytes() for row in rows]
    assert _stored(store, rows[::-3]) == [row.tobytes() for row in rows[::-3]]
    assert _stored(store, rows[:, 5:9]) == [row[5:9].tobytes() for row in rows]
    assert _stored(store, rows[:, 7:8]) == [row[7:8].tobytes() for row in rows]
    assert _stored(store, rows[:0]) == []
    assert _stored(store, rows[:3, :0]) == [b""] * 3
    rows.flags.writeable = False
    assert _stored(store, rows[:2]) == [row.tobytes() for row in rows[:2]]
    wide = numpy.arange(12, dtype=numpy.int32).reshape(3, 4)
    assert _stored(store, wide) == [row.tobytes() for row in wide]


def test_elements_of_numpy(store: mqfast.MessageStore) -> None:
    numpy = pytest.importorskip("numpy")
    for kind in ("S1", "S10", "V1", "V10", [("price", "<f8"), ("code", "S3")]):
        elements = numpy.frombuffer(bytes(range(240)) * 11, dtype=kind)
        for some in (elements, elements[::2]):
            assert _stored(store, some) == [element.tobytes() for element in some], kind
    # The whole width, with the zeros that numpy does not show.
    assert _stored(store, numpy.array([b"a", b"bcd"], dtype="S4")) == [b"a\0\0\0", b"bcd\0"]
    # Objects are taken one by one, as from any sequence.
    assert _stored(store, numpy.array([b"a", b"bcd"], dtype=object)) == [b"a", b"bcd"]


def test_what_is_no_array_of_bodies(store: mqfast.MessageStore) -> None:
    numpy = pytest.importorskip("numpy")
    across = numpy.zeros((4, 4), dtype=numpy.uint8)[:, ::2]
    for bad in (across, b"abc", array.array("i", [1, 2]), 5, None):
        with pytest.raises(MessageIllegal):
            store.put_many("T", bad)
    with pytest.raises(MessageTooLarge, match="body 0: expected at most"):
        store.put_many("T", numpy.zeros((2, 1 << 20), dtype=numpy.uint8))
    assert store.max_offset("T", 0) == 0


def test_memoryviews_of_two_dimensions(store: mqfast.MessageStore) -> None:
    text = bytes(range(60))
    assert _stored(store, memoryview(text).cast("B", (6, 10))) == [text[at : at + 10] for at in range(0, 60, 10)]


BODIES = [b"first", b"", b"x" * 300, b"last"] * 100


@pytest.mark.parametrize("kind", ["binary", "large_binary", "string", "large_string"])
def test_arrow_arrays(store: mqfast.MessageStore, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    values = [body.decode() for body in BODIES] if "string" in kind else BODIES
    whole = pyarrow.array(values, type=getattr(pyarrow, kind)())
    assert _stored(store, whole) == BODIES
    assert _stored(store, whole[5:90]) == BODIES[5:90]
    assert _stored(store, pyarrow.chunked_array([whole[:3], whole[3:3], whole[7:]])) == BODIES[:3] + BODIES[7:]
    assert _stored(store, pyarrow.chunked_array([], type=whole.type)) == []
    assert _stored(store, pyarrow.array([""] if "string" in kind else [b""], type=whole.type)) == [b""]
    assert _stored(store, pyarrow.table({"body": whole})["body"]) == BODIES


def test_arrow_fixed_size(store: mqfast.MessageStore) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    whole = pyarrow.array([b"%04d" % n for n in range(50)], type=pyarrow.binary(4))
    assert _stored(store, whole) == [b"%04d" % n for n in range(50)]
    assert _stored(store, whole[9:11]) == [b"0009", b"0010"]


def test_arrow_nulls_and_other_kinds(store: mqfast.MessageStore) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    holes = pyarrow.array([b"a", b"b", None, b"c"], type=pyarrow.binary())
    with pytest.raises(MessageIllegal, match="body 2: expected bytes, found a null"):
        store.put_many("T", holes)
    with pytest.raises(MessageIllegal, match="body 1: expected bytes, found a null"):
        store.put_many("T", pyarrow.chunked_array([holes[:1], holes[2:]]))
    assert _stored(store, holes[:2]) == [b"a", b"b"]
    assert _stored(store, holes[3:]) == [b"c"]
    for other in (pyarrow.array([1, 2]), pyarrow.array([b"a"]).dictionary_encode(), pyarrow.table({"a": [b"x"]})):
        with pytest.raises(MessageIllegal):
            store.put_many("T", other)
    with pytest.raises(MessageTooLarge, match="body 1: expected at most"):
        store.put_many("T", pyarrow.array([b"", bytes(1 << 17)]))
    assert store.max_offset("T", 0) == 3


class _Schema(ctypes.Structure):
    _fields_ = [("format", ctypes.c_char_p), ("rest", ctypes.c_void_p * 8)]


class _Array(ctypes.Structure):
    _fields_ = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("rest", ctypes.c_void_p * 4),
    ]


class Made:
    """An Arrow array of any offsets."""

    def __init__(self, offsets: list[int], length: int, n_buffers: int = 3) -> None:
        self.data = ctypes.create_string_buffer(64)
        self.offsets = (ctypes.c_int32 * len(offsets))(*offsets)
        buffers = (None, ctypes.addressof(self.offsets), ctypes.addressof(self.data))
        self.buffers = (ctypes.c_void_p * 3)(*buffers)
        self.array = _Array(length, 0, 0, n_buffers, 0, self.buffers)
        self.schema = _Schema(b"z")

    def __arrow_c_array__(self, requested: object = None) -> tuple[object, object]:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        pair = (self.schema, b"arrow_schema"), (self.array, b"arrow_array")
        schema, array = (new(ctypes.addressof(struct), name, None) for struct, name in pair)
        return schema, array


def test_offsets_of_arrow_that_cannot_be(store: mqfast.MessageStore) -> None:
    assert _stored(store, Made([0, 2, 2, 64], 3)) == [b"\0\0", b"", bytes(62)]
    for offsets, length, buffers in (([0, 5, 3], 2, 3), ([-1, 3], 1, 3), ([0, 1], 1, 2), ([0], -1, 3)):
        with pytest.raises(MessageIllegal):
            store.put_many("T", Made(offsets, length, buffers))
    assert store.max_offset("T", 0) == 3


_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_TELL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class _Stream(ctypes.Structure):
    _fields_ = [("get_schema", _CALL), ("get_next", _CALL), ("get_last_error", _TELL), ("rest", ctypes.c_void_p * 2)]


class Failing:
    """An Arrow stream whose schema or first array fails."""

    def __init__(self, *, schema: int, following: int) -> None:
        def get_schema(_: int, out: int) -> int:
            if schema == 0:
                _Schema.from_address(out).format = b"z"
            return schema

        self.text = ctypes.create_string_buffer(b"a broken pipe")
        why = ctypes.addressof(self.text)
        self.stream = _Stream(_CALL(get_schema), _CALL(lambda *_: following), _TELL(lambda _: why))

    def __arrow_c_stream__(self, requested: object = None) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.stream), b"arrow_array_stream", None)


def test_streams_that_fail(store: mqfast.MessageStore) -> None:
    for failing in (Failing(schema=5, following=0), Failing(schema=0, following=5)):
        with pytest.raises(MessageIllegal, match=r"stream failed \(5\): a broken pipe"):
            store.put_many("T", failing)
    assert _stored(store, Failing(schema=0, following=0)) == []


def test_a_topic_of_the_general_kind(store: mqfast.MessageStore) -> None:
    numpy = pytest.importorskip("numpy")
    pyarrow = pytest.importorskip("pyarrow")
    topic = "%RETRY%" + "t" * 150
    rows = numpy.arange(40, dtype=numpy.uint8).reshape(4, 10)
    assert _stored(store, rows, topic) == [row.tobytes() for row in rows]
    assert _stored(store, pyarrow.array([b"a", b""]), topic) == [b"a", b""]


def test_a_producer_rolls_within_an_array(store: mqfast.MessageStore) -> None:
    numpy = pytest.importorskip("numpy")
    rows = numpy.random.default_rng(1).integers(0, 256, (600, 500), dtype=numpy.uint8)
    result = store.producer("T").put_many(rows)
    assert len(result) == 600
    assert len(store.log.files) > 4
    assert [bytes(message.body) for message in store.get("T", 0, 0, 1000)] == [row.tobytes() for row in rows]


def test_nothing_is_held_afterwards(store: mqfast.MessageStore) -> None:
    text = bytearray(b"abcdef")
    view = memoryview(text).cast("B", (2, 3))
    store.put_many("T", view)
    view.release()
    text.append(1)  # not while somebody holds it
    with pytest.raises(MessageTooLarge):
        store.put_many("T", (bad := memoryview(bytearray(1 << 18)).cast("B", (1, 1 << 18))))
    bad.release()


def test_pointers_are_no_bodies(store: mqfast.MessageStore) -> None:
    numpy = pytest.importorskip("numpy")
    objects = numpy.array(["text", b"bytes"], dtype=object)
    mixed = numpy.zeros(2, dtype=[("number", "i4"), ("object", "O")])
    for body in (objects, mixed):
        for put in (
            lambda body=body: store.put("T", body),
            lambda body=body: store.put("T", body, flag=3),
            lambda body=body: store.producer("T").put(body),
            lambda body=body: store.put_many("T", [b"bytes", body]),
        ):
            with pytest.raises(MessageIllegal, match="ndarray"):
                put()
    assert store.max_offset("T", 0) <= 0

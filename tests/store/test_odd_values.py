"""Every public call with every kind of wrong value: it works, or raises one of ours, and the store goes on.

A value takes the place of one argument at a time. A TypeError may only come from the signature, which is right here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast import Message, StoreConfig, StoreReader
from mqfast.errors import MqfastError

SMALL: dict[str, Any] = {"mapped_file_bytes_commit_log": 64 << 10, "max_hash_slot_num": 16, "max_index_num": 200}


class Level(enum.IntEnum):
    """A number by another name."""

    ONE = 1


class Broken:
    """Whatever is asked of it fails."""

    def _fail(self, *_: object) -> Any:
        raise ValueError("broken")

    __str__ = __len__ = __iter__ = __index__ = __float__ = __fspath__ = __bytes__ = __getitem__ = _fail
    __hash__ = object.__hash__


ODD: list[Any] = [
    None,
    True,
    Level.ONE,
    -1,
    0,
    1,
    2**31,
    2**63,
    -(2**63) - 1,
    2**200,
    1.5,
    math.nan,
    math.inf,
    "",
    "a",
    "a b",
    "a@b",
    "\ud800",
    "\0",
    "\x01\x02",
    "/",
    "..",
    "*",
    "A || ",
    "x" * 300,
    "x" * 40_000,
    b"",
    b"a",
    bytearray(b"a"),
    memoryview(b"abcd")[::2],
    [],
    ["a", 1],
    {},
    {"a": 1},
    {1: "a"},
    {"a": "\ud800"},
    (),
    {1, 2},
    object(),
    Broken(),
    len,
    int,
]


def cases(store: mqfast.MessageStore) -> Iterator[tuple[str, Callable[..., Any], list[Any], dict[str, Any]]]:
    """Name, call, good positional and good named arguments."""
    for name, put in (("put", store.put), ("put_nowait", store.put_nowait)):
        yield (
            name,
            put,
            ["T", b"body", 0, "tag", "key", {"p": "v"}],
            {
                "flag": 1,
                "sys_flag": 0,
                "born_timestamp": 1,
                "born_host": "127.0.0.1:1",
                "store_host": "127.0.0.1:1",
                "reconsume_times": 0,
                "prepared_transaction_offset": 0,
                "wait_store_ok": True,
            },
        )
    yield "put plain", store.put, ["T", b"body", 0, "tag", "key"], {}
    yield "put_many", store.put_many, ["T", [b"a"], 0, "tag"], {}
    yield "put_message", store.put_message, [Message("T", b"a")], {}
    yield "put_batch", store.put_batch, [[Message("T", b"a")]], {}
    yield "producer", store.producer, ["T", 0, "tag"], {}
    yield "BoundProducer.put", store.producer("T").put, [b"a", "key"], {}
    yield "BoundProducer.put_many", store.producer("T").put_many, [[b"a"]], {}
    yield "get", store.get, ["T", 0, 0, 1, 100, "tag"], {}
    yield "look", store.look, [0], {}
    yield "query", store.query, ["T", "key", 10, 0, 1 << 60], {}
    yield "offset_by_time", store.offset_by_time, ["T", 0, 1, "LOWER"], {}
    yield "min_offset", store.min_offset, ["T", 0], {}
    yield "max_offset", store.max_offset, ["T", 0], {}
    yield "queue_ids", store.queue_ids, ["T"], {}
    yield "consumer", store.consumer, ["G", "T"], {"tags": "tag", "from_first": True, "batch": 3}
    yield "flush", store.flush, [1.0], {}
    yield "delete_topic", store.delete_topic, ["none"], {}
    yield "Ticket.wait", store.put_nowait("T", b"a").wait, [1.0], {}
    offsets = store.consumer_offsets
    yield "offsets.commit", offsets.commit, ["G", "T", 0, 1], {}
    yield "offsets.get", offsets.get, ["G", "T", 0], {}
    yield "offsets.offsets", offsets.offsets, ["G"], {}
    yield "Message", lambda *given: store.put_message(Message(*given)), ["T", b"body", 0, "tag", "key", {"p": "v"}], {}
    consumer = store.consumer("G", "T")
    yield "Consumer.seek", consumer.seek, [0, 0], {}
    yield "Consumer.position", consumer.position, [0], {}


def reader_cases(reader: StoreReader) -> Iterator[tuple[str, Callable[..., Any], list[Any], dict[str, Any]]]:
    yield "get", reader.get, ["T", 0, 0, 1, 100, "tag"], {}
    yield "look", reader.look, [0], {}
    yield "query", reader.query, ["T", "key", 10, 0, 1 << 60], {}
    yield "offset_by_time", reader.offset_by_time, ["T", 0, 1, "LOWER"], {}
    yield "min_offset", reader.min_offset, ["T", 0], {}
    yield "max_offset", reader.max_offset, ["T", 0], {}
    yield "scan", lambda *given: next(iter(reader.scan(*given)), None), [0, 100, True], {}
    yield "tail", lambda *given, **named: reader.tail(*given, **named).poll(1, 0), ["T", 0, "tag"], {"from_offset": 0}


def outcomes(
    name: str, call: Callable[..., Any], good: list[Any], named: dict[str, Any], before: Callable[[], Any]
) -> list[str]:
    """What was neither a result nor an error of ours."""
    wrong = []
    places: list[int | str] = [*range(len(good)), *named]
    for place in places:
        for value in ODD:
            given, keywords = list(good), dict(named)
            if isinstance(place, int):
                given[place] = value
            else:
                keywords[place] = value
            before()
            try:
                call(*given, **keywords)
            except MqfastError:
                pass
            except Exception as error:
                if str(error) == "broken":
                    continue  # the value's own, which nobody hides
                shown = "Broken" if isinstance(value, Broken) else f"{value!r:.40}"
                wrong.append(f"{name}, argument {place} = {shown}: {type(error).__name__}: {error!s:.100}")
    return wrong


def test_calls_of_a_store(tmp_path: Path) -> None:
    wrong: list[str] = []
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for name, call, good, named in cases(store):
            call(*good, **named)
            wrong += outcomes(name, call, good, named, lambda: None)
        count = store.put_count
        store.put("still", b"goes on")
        assert store.put_count == count + 1
        assert store.get("still", 0, 0).bodies() == [b"goes on"]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert store.recovery.clean
        assert store.put_count == 0
        assert store.get("still", 0, 0).bodies() == [b"goes on"]
    assert mqfast.verify(tmp_path / "store").ok


def test_calls_of_a_reader(tmp_path: Path) -> None:
    wrong: list[str] = []
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for number in range(3):
            store.put("T", b"body", 0, "tag", f"k{number}")
        store.get("T", 0, 0)
        with StoreReader(tmp_path / "store") as reader:
            for name, call, good, named in reader_cases(reader):
                wrong += outcomes(f"reader.{name}", call, good, named, lambda: None)
            assert len(reader.get("T", 0, 0)) == 3
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


def test_paths_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    wrong: list[str] = []
    for name, call in (
        ("open", _opened),
        ("verify", mqfast.verify),
        ("repair", mqfast.repair),
        ("reader", StoreReader),
    ):
        wrong += outcomes(name, call, [tmp_path / "store"], {}, lambda: None)
    for setting in StoreConfig().describe():
        wrong += outcomes("settings", lambda **named: StoreConfig.from_kwargs(**named), [], {setting.field: 1}, list)
    wrong += outcomes(
        "open", lambda **named: _opened(tmp_path / "s", **named), [], {"config": None, "broker_conf": None}, list
    )
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


def _opened(path: Any, **named: Any) -> None:
    mqfast.open(path, **{**SMALL, **named}).close()

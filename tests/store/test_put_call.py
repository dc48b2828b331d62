"""store.put as the interpreter calls it: arguments by place and by name in every mixture, as any function has them."""

from __future__ import annotations

import inspect
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.errors import MessageIllegal

NAMES = ("topic", "body", "queue_id", "tags", "keys")
PARAMETERS = [
    "self", "topic", "body", "queue_id", "tags", "keys", "properties",
    "flag", "sys_flag", "born_timestamp", "born_host", "store_host", "reconsume_times", "prepared_transaction_offset",
    "wait_store_ok",
]  # fmt: skip


def test_every_mixture_of_places_and_names(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as store:
        values = ("T", b"body", 3, "A", ["k1", "k2"])
        seen = 0
        for placed in range(6):
            named = NAMES[max(placed, 2) :]
            for count in range(len(named) + 1):
                for chosen in itertools.permutations(named, count):
                    given: dict[str, Any] = {name: values[NAMES.index(name)] for name in chosen}
                    given |= {name: values[NAMES.index(name)] for name in NAMES[placed:2]}
                    result = store.put(*values[:placed], **given)
                    message = store.log.message(result.physical_offset)
                    whole = {**dict(zip(NAMES, values[:placed], strict=False)), **given}
                    assert bytes(message.body) == b"body"
                    assert message.topic == "T"
                    assert message.queue_id == whole.get("queue_id", 0)
                    assert message.tags == whole.get("tags")
                    assert message.keys == whole.get("keys", [])
                    seen += 1
        assert seen == 3 * 16 + 5 + 2 + 1


def test_further_options_and_names_that_are_not_interned(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as store:
        name = "".join(["ta", "gs"])
        assert name is not sys.intern("tags")
        assert store.log.message(store.put("T", b"x", **{name: "A"}).physical_offset).tags == "A"
        message = store.log.message(store.put("T", b"x", 0, "A", "k", {"a": "b"}, flag=7).physical_offset)
        assert (message.tags, message.keys, message.properties["a"], message.flag) == ("A", ["k"], "b", 7)
        assert store.log.message(store.put("T", b"x", properties={"c": "d"}).physical_offset).properties == {"c": "d"}


@pytest.mark.parametrize(
    ("placed", "named", "error", "says"),
    [
        ((), {}, TypeError, "at least 2 positional arguments"),
        (("T",), {}, TypeError, "at least 2 positional arguments"),
        (("T", b"x", 0, None, None, None, 7), {}, TypeError, "at most 6 positional arguments"),
        (("T", b"x"), {"tag": "A"}, TypeError, "unexpected keyword argument 'tag'"),
        (("T", b"x", 0), {"queue_id": 1}, TypeError, "multiple values for keyword argument 'queue_id'"),
        (("T", b"x", 0, "A"), {"tags": "B"}, TypeError, "multiple values for keyword argument 'tags'"),
        (("T", b"x", 0, "A", "k"), {"keys": "l"}, TypeError, "multiple values for keyword argument 'keys'"),
        (("T", b"x"), {"body": b"y"}, TypeError, "multiple values for keyword argument 'body'"),
        (("T", b"x"), {"queue_id": -1}, MessageIllegal, "queue_id: expected 0 to 2147483647, found -1"),
        (("T", b"x"), {"tags": 5}, MessageIllegal, "tags: expected str or None, found int"),
        (("T", b"x"), {"keys": 5}, MessageIllegal, "keys: expected a str or several, found int"),
        ((5, b"x"), {}, MessageIllegal, "topic: expected str, found int"),
        (("T", "x"), {}, MessageIllegal, "body: expected a contiguous bytes-like object, found str"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, placed: tuple[Any, ...], named: dict[str, Any], error: type[Exception], says: str
) -> None:
    with mqfast.open(tmp_path / "store") as store:
        with pytest.raises(error, match=says):
            store.put(*placed, **named)
        assert store.put_count == 0


def test_put_keeps_the_reference_counts_of_arguments(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as store:
        body, tags, keys = bytes(bytearray(b"body")), "".join(["A", "1"]), ["k1", "k2"]
        store.put("T", body, 1, tags=tags, keys=keys)  # the producer of this topic, queue and tags is kept
        before = [sys.getrefcount(one) for one in (body, tags, keys)]
        for _ in range(1000):
            store.put("T", body, 1, tags=tags, keys=keys)
            store.put("T", body, 1, tags, keys)
            with pytest.raises(TypeError):
                store.put("T", body, 1, tags, keys, tags=tags)
        assert [sys.getrefcount(one) for one in (body, tags, keys)] == before


def test_put_has_a_signature() -> None:
    assert list(inspect.signature(mqfast.MessageStore.put).parameters) == PARAMETERS
    assert "Store a message." in (mqfast.MessageStore.put.__doc__ or "")

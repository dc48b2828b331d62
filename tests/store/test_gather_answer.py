"""Records of a broker's answer as columns: whole answers, parts of ranges, holes, other queues, bytes that are none."""

from __future__ import annotations

import pytest

import mqfast
from mqfast.errors import UsageError
from mqfast.store.reader.gather import Gather

pa = pytest.importorskip("pyarrow")

COLUMNS = [(name, name, False) for name in ("topic", "queue_id", "queue_offset", "physical_offset", "body")]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The records of 3000 messages of one queue, as a broker sends them."""
    with mqfast.open(tmp_path_factory.mktemp("answer") / "store") as store:
        store.put_many("ns%t", [b"%06d" % n for n in range(3000)], 2, tags="a")
        return [bytes(one.to_bytes()) for at in range(0, 3000, 100) for one in store.get("ns%t", 2, at, 100)]


def taken(
    gather: Gather, data: bytes, *, expected: int = 0, begin: int = 0, end: int = 3000
) -> tuple[list[dict[str, object]], str, int, int]:
    """All rows up to where the answer ends or something is to be decided, why, where, and what is expected next."""
    rows: list[dict[str, object]] = []
    at = 0
    while True:
        at, why, expected, _ = gather.answer(data, at, expected, begin, end, b"ns%t", b"t", 2)
        if why == "full" or gather.rows:
            rows += pa.record_batch(gather.finish()).to_pylist()
        if why != "full":
            return rows, why, at, expected


def test_a_whole_answer_in_batches_of_any_size(records: list[bytes]) -> None:
    data = b"".join(records)
    for batch_rows in (1, 1000, 1024, 5000):
        gather = Gather(COLUMNS, batch_rows=batch_rows)
        rows, why, at, expected = taken(gather, data)
        assert (len(rows), why, at, expected) == (3000, "limit", len(data), 3000)
        assert rows[7] == {
            "topic": "t", "queue_id": 2, "queue_offset": 7, "physical_offset": sum(map(len, records[:7])),
            "body": b"000007",
        }  # fmt: skip
    assert taken(Gather(COLUMNS), memoryview(data)[:0]) == ([], "limit", 0, 0)  # type: ignore[arg-type]
    assert len(taken(Gather(COLUMNS), bytearray(data))[0]) == 3000  # type: ignore[arg-type]


def test_what_is_not_of_the_range_is_left_out(records: list[bytes]) -> None:
    rows, why, _, expected = taken(Gather(COLUMNS), b"".join(records[5:40]), expected=10, begin=10, end=20)
    assert [row["queue_offset"] for row in rows] == list(range(10, 20))
    assert (why, expected) == ("limit", 20)
    rows, why, _, expected = taken(Gather(COLUMNS), records[5] + records[9], expected=5, begin=5, end=8)
    assert (len(rows), why, expected) == (1, "limit", 6)  # 6 and 7 are not there


def test_a_hole_is_told_before_the_record_behind_it(records: list[bytes]) -> None:
    data = b"".join([*records[:3], *records[6:9]])
    gather = Gather(COLUMNS)
    rows, why, at, expected = taken(gather, data)
    assert ([row["queue_offset"] for row in rows], why, expected) == ([0, 1, 2], "hole", 3)
    assert at == sum(map(len, records[:3]))
    assert gather.answer(data, at, 3, 0, 3000, b"ns%t", b"t", 2) == (at, "hole", 3, 6)
    assert gather.answer(data, at, 6, 0, 3000, b"ns%t", b"t", 2) == (len(data), "limit", 9, -1)
    assert taken(Gather(COLUMNS), data, expected=-1)[1:] == ("limit", len(data), -1)


def test_a_record_of_another_queue_stops(records: list[bytes]) -> None:
    data = b"".join(records[:2])
    for asked, queue_id in ((b"ns%other", 2), (b"ns%t", 3)):
        assert Gather(COLUMNS).answer(data, 0, 0, 0, 9, asked, b"t", queue_id) == (0, "queue", 0, -1)


@pytest.mark.parametrize("cut", [1, 4, 8, 35, 36, 90])
def test_bytes_that_are_cut_off_stop(records: list[bytes], cut: int) -> None:
    data = records[0] + records[1][:cut]
    rows, why, at, _ = taken(Gather(COLUMNS), data)
    assert (len(rows), at) == (1, len(records[0]))
    assert why not in ("full", "limit", "hole", "queue")


def test_checksums_stop_skip_or_mark(records: list[bytes]) -> None:
    damaged = bytearray(records[1])
    damaged[damaged.index(b"000001")] = 0x31
    data = records[0] + bytes(damaged) + records[2]
    assert taken(Gather(COLUMNS, check_crc=True), data)[1] == "crc"
    gather = Gather(COLUMNS, check_crc=True, bad="skip")
    assert ([row["queue_offset"] for row in taken(gather, data)[0]], gather.skipped) == ([0, 2], 1)
    marked = taken(Gather([*COLUMNS, ("crc_ok", "ok", False)], check_crc=True, bad="mark"), data)[0]
    assert [row["ok"] for row in marked] == [True, False, True]


def test_a_place_outside_of_the_answer_is_refused(records: list[bytes]) -> None:
    with pytest.raises(UsageError, match="expected 0 to"):
        Gather(COLUMNS).answer(records[0], len(records[0]) + 1, 0, 0, 9, b"ns%t", b"t", 2)

"""``mqfast store cat``, ``dump``, ``tail``, ``query``, ``ls``: which messages, in which form, of which store.

Room: tests of the command line.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import Case, copy_of, golden_cases

import mqfast
from mqfast.cli.arguments import time_ms
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import main
from mqfast.cli.rows import columns_of, json_lines
from mqfast.store.reader.gather import COLUMNS
from mqfast.store.reader.record_lists import to_lists

BODIES = [b"", b"plain text", "grüße".encode(), b"\xff\x00", b"two\nlines", zlib.compress(b"hidden text")]


def run(capsysbinary: pytest.CaptureFixture[bytes], *arguments: object) -> tuple[int, bytes, str]:
    code = main(["store", *map(str, arguments)])
    said = capsysbinary.readouterr()
    return int(code), said.out, said.err.decode()


def rows(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with mqfast.open(path) as writer:
        for number in range(60):
            body = BODIES[number % 6]
            writer.put(
                "AB"[number % 2], body, number % 3, tags=["x", "y"][number // 30], keys=f"k{number}",
                properties={"n": str(number)}, sys_flag=1 if number % 6 == 5 else 0,
            )  # fmt: skip
            if number == 29:
                time.sleep(0.01)  # two parts with other store times
    return path


def numbers(text: bytes) -> list[int]:
    return [int(row["properties"]["n"]) for row in rows(text)]


def test_cat_takes_several_topics_times_tags_and_expressions(
    store: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def cat(*more: object) -> list[int]:
        code, text, _ = run(capsysbinary, "cat", store, "A", "B", "--count", 0, "--json", *more)
        assert code == (ExitCode.OK if text else ExitCode.NOTHING_FOUND)
        return numbers(text)

    every = [n for topic in range(2) for queue in range(3) for n in range(60) if (n % 2, n % 3) == (topic, queue)]
    assert cat() == every
    assert cat("--queue", 1) == [n for n in every if n % 3 == 1]
    assert cat("--tags", "y") == [n for n in every if n >= 30]
    assert cat("--grep", "pl..n") == [n for n in every if n % 6 == 1]
    assert cat("--grep", "hidden") == [
        n for n in every if n % 6 == 5
    ]  # compressed bodies are looked at as they are shown
    assert cat("--grep-text", "pl..n") == []
    with mqfast.StoreReader(store) as reader:
        stored = {int(m.properties["n"]): m.store_timestamp for q in reader.queues() for m in reader.messages(*q[:2])}
    middle = stored[30]
    assert cat("--begin", middle) == [n for n in every if stored[n] >= middle]
    assert cat("--end", middle) == [n for n in every if stored[n] <= middle]
    assert cat("--begin", middle, "--end", middle) == [n for n in every if stored[n] == middle]
    assert cat("--begin", stored[59] + 1) == []
    code, text, _ = run(capsysbinary, "cat", store, "B", "--json", "--count", 2, "--tags", "y", "--queue", 1, "A")
    assert (code, numbers(text)) == (ExitCode.OK, [31, 37, 34, 40])


def test_times_are_milliseconds_or_iso_8601(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert time_ms("1767225600000") == 1767225600000
        assert time_ms("2026-01-01T00:00:00+00:00") == 1767225600000
        assert time_ms("2026-01-01T00:00:00Z") == 1767225600000
        assert time_ms("2026-01-01T09:00") == 1767225600000  # local time
        assert time_ms("2026-01-01") == 1767225600000 - 9 * 3600_000
        for without_limit in (str((1 << 63) - 1), "9" * 30, "9999-12-31T23:59:59-12:00"):
            assert datetime.fromtimestamp(time_ms(without_limit) / 1000).year == 9999
        assert time_ms("0001-01-02T00:00+14:00") == 0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_shown_time_is_one_that_begin_takes(
    store: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/St_Johns")
    time.tzset()
    try:
        shown = run(capsysbinary, "get", store, "A/0/0", "--body", "none")[1].decode().split("\n")[0].split("  ")[1]
        assert run(capsysbinary, "get", store, "A/0/0", "--json")[1].decode().count(str(time_ms(shown))) > 0
    finally:
        monkeypatch.undo()
        time.tzset()
    for command in (("cat", store, "A"), ("dump", store), ("query", store, "A", "k0"), ("export", store)):
        code, text, said = run(capsysbinary, *command, "--begin", 2, "--end", 1)
        assert (code, text) == (ExitCode.USAGE, b"")
        assert "--end: expected a time not before --begin, 2; found 1" in said


def test_query_and_dump_take_times_as_well(store: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with mqfast.StoreReader(store) as reader:
        stored = [m.store_timestamp for m in reader.scan()]
    code, text, _ = run(capsysbinary, "dump", store, "--json", "--begin", stored[30])
    assert (code, numbers(text)) == (ExitCode.OK, [n for n in range(60) if stored[n] >= stored[30]])
    code, text, _ = run(capsysbinary, "dump", store, "B", "--json", "--end", stored[29])
    assert (code, numbers(text)) == (ExitCode.OK, [n for n in range(60) if stored[n] <= stored[29] and n % 2])
    assert run(capsysbinary, "dump", store, "C", "--json")[:2] == (ExitCode.NOTHING_FOUND, b"")
    code, text, _ = run(capsysbinary, "query", store, "B", "k31", "--begin", stored[31], "--end", stored[31], "--json")
    assert (code, numbers(text)) == (ExitCode.OK, [31])
    assert run(capsysbinary, "query", store, "B", "k31", "--end", stored[29])[0] == ExitCode.NOTHING_FOUND
    code, text, _ = run(capsysbinary, "query", store, "B", "--tag", "y", "--max", 3, "--json")
    assert (code, numbers(text)) == (ExitCode.OK, [59, 57, 55])  # the newest first
    assert run(capsysbinary, "query", store, "B", "k31", "--tag", "y")[0] == ExitCode.USAGE
    assert run(capsysbinary, "query", store, "B")[0] == ExitCode.USAGE


def test_tail_takes_several_topics(store: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with mqfast.open(store) as writer:
        writer.put("C", b"other", properties={"n": "60"})
    arguments = ("--from", 0, "--seconds", 0.01, "--json")
    assert numbers(run(capsysbinary, "tail", store, "A", "C", *arguments)[1]) == [*range(0, 60, 2), 60]
    assert numbers(run(capsysbinary, "tail", store, *arguments, "--queue", 0)[1]) == [*range(0, 60, 3), 60]
    assert numbers(run(capsysbinary, "tail", store, "A", "B", *arguments, "--grep", "plain")[1]) == [*range(1, 60, 6)]


def test_raw_bodies_are_the_exact_bytes(store: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with mqfast.StoreReader(store) as reader:
        bodies = [bytes(m.body) for m in reader.messages("B", 1)]
    for separator, meant in (
        (None, b"\n"),
        ("", b""),
        ("\\0", b"\0"),
        ("\\x01\\n--", b"\x01\n--"),
        ("ü\\\\", "ü\\".encode()),
    ):
        more = () if separator is None else ("--separator", separator)
        code, text, _ = run(capsysbinary, "cat", store, "B", "--queue", 1, "--body", "raw", *more)
        assert (code, text) == (ExitCode.OK, b"".join(body + meant for body in bodies))
    assert run(capsysbinary, "get", store, "B/0/0", "--body", "raw")[1] == b"\xff\x00"
    assert run(capsysbinary, "get", store, "B/0/0", "--body", "raw", "--separator", "\\n")[1] == b"\xff\x00\n"
    assert run(capsysbinary, "cat", store, "B", "--body", "raw", "--json")[0] == ExitCode.USAGE
    assert run(capsysbinary, "cat", store, "B", "--body", "raw", "--separator", "\\q")[0] == ExitCode.USAGE


def test_sums_are_printed_with_sha256(store: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for command in (("cat", store, "A"), ("dump", store), ("get", store, "A/0/0"), ("query", store, "A", "k0")):
        plain = rows(run(capsysbinary, *command, "--json")[1])
        summed = rows(run(capsysbinary, *command, "--json", "--sha256")[1])
        assert all("bodySha256" not in row for row in plain)
        assert [{**row, "bodySha256": 0} for row in plain] == [{**row, "bodySha256": 0} for row in summed]
        assert {row["bodySha256"] for row in summed} <= {hashlib.sha256(body).hexdigest() for body in BODIES}
        assert hashlib.sha256(b"").hexdigest() in run(capsysbinary, *command, "--sha256")[1].decode()
    assert all("body" not in row for row in rows(run(capsysbinary, "cat", store, "A", "--json", "--body", "none")[1]))


def test_ls_tells_sizes(store: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    code, text, _ = run(capsysbinary, "ls", store, "--sizes", "--json")
    assert code == ExitCode.OK
    with mqfast.StoreReader(store) as reader:
        for row in rows(text):
            assert row["bytes"] == sum(m.size for m in reader.messages(row["topic"], row["queueId"]))
            assert row["queueBytesOnDisk"] > 0
    assert run(capsysbinary, "ls", store, "--sizes")[1].split(b"\n")[0].split()[-3:] == [b"bytes", b"queue", b"bytes"]
    batch = golden_cases("5.3.3", ("batch-cq",))[0].store
    assert all(row["bytes"] > 0 for row in rows(run(capsysbinary, "ls", batch, "--sizes", "--json")[1]) if row["count"])


@pytest.mark.parametrize("case", golden_cases(names=("normal-clean", "killed", "batch-cq", "lmq")), ids=str)
def test_cat_gives_the_messages_that_a_get_gives(case: Case, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with mqfast.StoreReader(case.store) as reader:
        for queue in reader.queues():
            if queue.min_offset == queue.max_offset:
                continue
            expected = columns_of(list(reader.messages(queue.topic, queue.queue_id)))
            if queue.topic.startswith("%LMQ%"):  # the queue's own name, not that of the record
                expected |= {"topic": [queue.topic] * len(expected["topic"]), "queue_id": [0] * len(expected["topic"])}
            arguments = ("cat", case.store, queue.topic, "--queue", queue.queue_id, "--count", 0, "--json")
            found = rows(run(capsysbinary, *arguments)[1])
            assert found == rows(json_lines(expected, body=True).encode())
            last = rows(run(capsysbinary, *arguments, "--offset", queue.max_offset - 1)[1])
            assert last == found[-1:]


# --- where PATH comes from ---


@pytest.mark.parametrize(
    ("arguments", "same_as"),
    [
        (["ls"], ["ls", "STORE"]),
        (["cat", "A"], ["cat", "STORE", "A"]),
        (["cat", "A", "B", "--json"], ["cat", "STORE", "A", "B", "--json"]),
        (["cat", "--json", "A", "--count", "2", "B"], ["cat", "STORE", "A", "B", "--count", "2", "--json"]),
        (["get", "A/0/0"], ["get", "STORE", "A/0/0"]),
        (["query", "A", "k0"], ["query", "STORE", "A", "k0"]),
        (["dump", "B"], ["dump", "STORE", "B"]),
        (["dump"], ["dump", "STORE"]),
        (["groups"], ["groups", "STORE"]),
        (["export", "--topic", "A", "--queue", "1"], ["export", "STORE", "--topic", "A", "--queue", "1"]),
        (["verify", "--json"], ["verify", "STORE", "--json"]),
    ],
)
def test_the_environment_names_the_store(
    arguments: list[str], same_as: list[str], store: Path, capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def outcome(words: list[str]) -> tuple[int, bytes]:
        code, text, _ = run(capsysbinary, *(str(store) if word == "STORE" else word for word in words))
        return code, re.sub(rb'"(checked_)?seconds": ?[0-9.e-]+', b"", text)

    expected = outcome(same_as)
    assert outcome(arguments)[0] == (ExitCode.USAGE if len(arguments) < 9 else 0) or outcome(arguments) != expected
    monkeypatch.setenv("MQFAST_STORE", str(store))
    assert outcome(arguments) == expected
    # A PATH that is given wins.
    monkeypatch.setenv("MQFAST_STORE", "/nonexistent/store")
    assert outcome(same_as) == expected


def test_put_into_the_store_of_the_environment(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQFAST_STORE", str(tmp_path / "store"))
    assert run(capsysbinary, "put", "Orders", "a body", "--create")[0] == ExitCode.OK
    assert run(capsysbinary, "put", "--queue", 1, "Orders", "another body")[0] == ExitCode.OK
    assert run(capsysbinary, "get", "Orders/1/0", "--body", "raw")[1] == b"another body"
    file = tmp_path / "out.jsonl"
    assert run(capsysbinary, "export", file)[0] == ExitCode.OK
    assert len(rows(file.read_bytes())) == 2
    assert run(capsysbinary, "import", file)[0] == ExitCode.OK
    assert run(capsysbinary, "import", tmp_path / "other", file, "--create")[0] == ExitCode.OK
    assert run(capsysbinary, "export", tmp_path / "other", "-")[1].count(b"\n") == 2
    assert run(capsysbinary, "export")[1].count(b"\n") == 4
    monkeypatch.setenv("MQFAST_STORE", "")
    assert run(capsysbinary, "ls")[0] == ExitCode.USAGE


# --- columns as lists ---


def test_lists_hold_what_messages_hold(store: Path) -> None:
    with mqfast.StoreReader(store) as reader:
        messages = list(reader.scan())
        (batch,) = reader.scan_columns(columns=[name for name in COLUMNS if name != "crc_ok"])
        columns = to_lists(batch)
        (batch,) = reader.scan_columns(columns=["properties"])
        texts = to_lists(batch, True)["properties"]
    for name in ("topic", "queue_id", "size", "physical_offset", "store_timestamp", "born_host", "message_id", "tags"):
        assert columns[name] == [getattr(message, name) for message in messages]
    assert columns["body"] == [bytes(message.body) for message in messages]
    assert columns["properties"] == [message.properties for message in messages]
    assert [json.loads(text) for text in texts] == columns["properties"]
    assert columns["uniq_key"] == [None] * 60


def test_properties_are_json_whatever_they_hold(tmp_path: Path) -> None:
    odd = {'q"': "\\", "n\n": "\t", "ü": "\U0001f600\x7f", "plain": "text", " ": "/"}
    with mqfast.open(tmp_path / "store") as writer:
        writer.put("T", b"", properties=odd)
        writer.put("T", b"", properties=b"a\x01b\x02a\x01c\x02broken\x02\x01x\x02y\x01\x02\xff\x01z")
        writer.put("T", b"")
    with mqfast.StoreReader(tmp_path / "store") as reader:
        (batch,) = reader.scan_columns(columns=["properties"])
        texts = to_lists(batch, True)["properties"]
        assert all(text.isascii() for text in texts)
        assert [json.loads(text) for text in texts] == [odd, {"a": "c", "\ufffd": "z"}, {}]


def test_a_copy_is_read_while_it_is_not_recovered(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    copy = copy_of(golden_cases("5.3.3", ("killed",))[0], tmp_path)
    (copy / "checkpoint").unlink()
    assert len(rows(run(capsysbinary, "dump", copy, "--json")[1])) == 291

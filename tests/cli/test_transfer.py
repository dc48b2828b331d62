"""``mqfast store export`` and ``import``: a round trip keeps what a consumer sees; a wrong line is named.

Room: tests of the command line.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Case, golden_cases
from store_command import run

import mqfast
from mqfast.cli import importing
from mqfast.cli.exit_codes import ExitCode

UNIQUE = "7F0000010000000000000000000F423F"


def seen(path: Path) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """What a consumer sees of every queue, in order."""
    with mqfast.StoreReader(path) as reader:
        return {
            (queue.topic, queue.queue_id): [
                (
                    bytes(m.body), m.properties, m.flag, m.sys_flag & ~0x20, m.born_timestamp, m.born_host,
                    m.reconsume_times, m.prepared_transaction_offset,
                )
                for m in reader.messages(queue.topic, queue.queue_id)
            ]
            for queue in reader.queues()
            if queue.min_offset < queue.max_offset and not queue.topic.startswith("%LMQ%")
        }  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with mqfast.open(path) as writer:
        bodies = [
            b"",
            b"plain",
            "grüße \U0001f600".encode(),
            b"\xff\x00\x80",
            b'a "quoted" \\ line\nand more',
            b"\x1b[2J",
        ]
        for number in range(120):
            writer.put(
                f"T{number % 3}", bodies[number % len(bodies)] + b"%d" % (number if number % 6 else 0), number % 4,
                tags=[None, "a", "b"][number % 3], keys=["k", f"k{number}"] if number % 2 else None,
                properties={'na"me': "wörth\n", "UNIQ_KEY": f"{UNIQUE}{number}", "DELAY": "3"} if number % 5 else None,
                flag=number - 60, sys_flag=0x8 if number % 7 == 0 else 0, reconsume_times=number % 3,
                born_timestamp=1_700_000_000_000 + number, prepared_transaction_offset=number,
                born_host="[2001:db8::1]:80" if number % 11 == 0 else "10.1.2.3:4567",
            )  # fmt: skip
        writer.put("T0", b"half", sys_flag=0x4)  # in no queue: no consumer sees it
    return path


def test_a_round_trip_keeps_what_consumers_see(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, other = tmp_path / "all.jsonl", tmp_path / "other"
    code, text, _ = run(capsys, "export", store, lines)
    assert (code, text) == (ExitCode.OK, f"120 messages exported to {lines}\n")
    code, text, _ = run(capsys, "import", other, lines, "--create")
    assert (code, text) == (ExitCode.OK, f"120 messages imported into {other}\n")
    assert seen(other) == seen(store)
    assert mqfast.verify(other).ok
    with mqfast.StoreReader(other) as reader:
        assert [m.flag for m in reader.query("T1", f"{UNIQUE}31")] == [31 - 60]


@pytest.mark.parametrize("case", golden_cases("5.3.3", ("normal-clean", "killed", "lmq")), ids=str)
def test_a_round_trip_of_a_brokers_store(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "export", case.store)
    assert code == ExitCode.OK
    lines = tmp_path / "lines"
    lines.write_text(text)
    assert run(capsys, "import", tmp_path / "other", lines, "--create")[0] == ExitCode.OK
    assert seen(tmp_path / "other") == seen(case.store)


def test_messages_of_a_deleted_topic_are_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mqfast.open(tmp_path / "store") as writer:
        writer.put_many("T", [b"old"] * 5)
        writer.delete_topic("T")
        writer.put_many("T", [b"new"] * 3)
    code, text, _ = run(capsys, "export", tmp_path / "store", "--topic", "T")
    assert code == ExitCode.OK
    assert [json.loads(line)["body"] for line in text.splitlines()] == ["new"] * 3


def test_an_export_contains_the_selected_messages(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def flags(*more: object) -> list[int]:
        code, text, _ = run(capsys, "export", store, *more)
        assert code == (ExitCode.OK if text else ExitCode.NOTHING_FOUND)
        return sorted(json.loads(line)["flag"] + 60 for line in text.splitlines())

    assert flags("--topic", "T1", "--topic", "T2") == [n for n in range(120) if n % 3]
    assert flags("-", "--topic", "T1", "--queue", 2) == [n for n in range(120) if n % 3 == 1 and n % 4 == 2]
    assert flags("--tags", "b") == [n for n in range(120) if n % 3 == 2]
    assert flags("--grep", "^pl.in") == [n for n in range(120) if n % 6 == 1]
    assert flags("--grep-text", "^pl.in") == []
    with mqfast.StoreReader(store) as reader:
        times = sorted(m.store_timestamp for q in reader.queues() for m in reader.messages(q.topic, q.queue_id))
    assert len(flags("--begin", times[0], "--end", times[-1])) == 120
    assert len(flags("--begin", times[60])) == sum(time >= times[60] for time in times)
    assert flags("--begin", times[-1] + 1) == flags("--end", times[0] - 1) == []


def test_csv_holds_text_and_binary_bodies(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "export", store, "--topic", "T0", "--queue", 0, "--format", "csv")
    assert code == ExitCode.OK
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    with mqfast.StoreReader(store) as reader:
        for row, message in zip(rows, reader.messages("T0", 0), strict=True):
            assert (row["topic"], int(row["queueOffset"])) == ("T0", message.queue_offset)
            assert json.loads(row["properties"]) == message.properties
            assert (row["body"].encode() or __import__("base64").b64decode(row["bodyBase64"])) == message.body


def test_no_text_of_a_producer_is_a_formula_in_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "plain", ""]
    with mqfast.open(tmp_path / "formulas") as odd:
        for text in texts:
            odd.put("T", text.encode(), tags=text.strip() or None, keys=text.strip() or None)
    code, text, _ = run(capsys, "export", tmp_path / "formulas", "--format", "csv")
    assert code == ExitCode.OK
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    cells = [row[name] for row in rows for name in ("topic", "tags", "keys", "msgId", "body")]
    assert [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r")] == []
    assert [row["body"].removeprefix("'") for row in rows] == texts


def test_parquet_holds_every_column(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    code, text, _ = run(capsys, "export", store, tmp_path / "all.parquet", "--json")
    assert code == ExitCode.OK
    assert json.loads(text) == {"exported": 120, "format": "parquet", "file": str(tmp_path / "all.parquet")}
    table = parquet.read_table(tmp_path / "all.parquet")
    rows: dict[tuple[str, int], list[Any]] = {}
    for row in table.to_pylist():
        rows.setdefault((row["topic"], row["queue_id"]), []).append((row["body"], dict(row["properties"]), row["flag"]))
    assert rows == {queue: [message[:3] for message in messages] for queue, messages in seen(store).items()}
    assert str(table.schema.field("store_timestamp").type) == "timestamp[ms, tz=UTC]"


def test_parquet_without_pyarrow_says_what_is_missing(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, said = run(capsys, "export", store, tmp_path / "all.parquet")
    assert code == ExitCode.USAGE
    assert "expected pyarrow, found none" in said
    assert "pip install pyarrow" in said
    assert run(capsys, "export", store, "--format", "parquet")[0] == ExitCode.USAGE
    assert not list(tmp_path.glob("all*"))


def test_an_export_never_replaces_a_file_and_leaves_no_half_one(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    code, _, said = run(capsys, "export", store, there)
    assert (code, there.read_text()) == (ExitCode.USAGE, "mine")
    assert str(there) in said
    log = store / "commitlog" / f"{0:020}"
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(data.index(b"plain"))
        file.write(b"Plain")
    assert run(capsys, "export", store, tmp_path / "new.jsonl")[0] == ExitCode.DAMAGE
    assert not list(tmp_path.glob("new*"))


# --- import ---


def test_lines_of_text_become_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    file = tmp_path / "lines"
    file.write_bytes(b"one\n\ntwo \xff\r\nlast")
    arguments = ("--lines", "--topic", "T", "--queue", 3, "--tags", "t", "--keys", "k l", "--property", "p=q")
    code, _, _ = run(capsys, "import", store, file, *arguments, "--create")
    assert code == ExitCode.OK
    with mqfast.StoreReader(store) as reader:
        messages = list(reader.messages("T", 3))
        assert [bytes(m.body) for m in messages] == [b"one", b"", b"two \xff\r", b"last"]
        assert {json.dumps(m.properties, sort_keys=True) for m in messages} == {
            '{"KEYS": "k l", "TAGS": "t", "p": "q"}'
        }
    code, _, said = run(capsys, "import", store, file, "--lines")
    assert (code, "expected --topic" in said) == (ExitCode.USAGE, True)


def test_standard_input_is_read_when_no_file_is_named(tmp_path: Path) -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "mqfast.cli", "store", "import", tmp_path / "store", "--create", "--json"],
        input='{"topic":"T","body":"a","tags":"x","keys":["k1","k2"]}\n\n{"topic":"T","bodyBase64":"/w==","queueId":1}\n',
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"imported":2}\n', "")
    with mqfast.StoreReader(tmp_path / "store") as reader:
        assert [m.properties for m in reader.messages("T", 0)] == [{"TAGS": "x", "KEYS": "k1 k2"}]
        assert [bytes(m.body) for m in reader.messages("T", 1)] == [b"\xff"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"not JSON", "expected a JSON object"),
        (b"\xff\xfe", "expected a JSON object"),
        (b'["a"]', "expected a JSON object"),
        (b'{"topic":"T"}', "expected either body or bodyBase64"),
        (b'{"topic":"T","body":"a","bodyBase64":"YQ=="}', "expected either body or bodyBase64"),
        (b'{"topic":"T","bodyBase64":"!"}', "base64"),
        (b'{"topic":"T","body":7}', "expected a text as body"),
        (b'{"topic":"T","boby":"a"}', "'boby'"),
        (b'{"topic":"T","body":"a","queueId":"1"}', "expected queueId to be a number"),
        (b'{"topic":"T","body":"a","flag":true}', "expected flag to be a number"),
        (b'{"topic":"T","body":"a","properties":[]}', "expected properties to be an object"),
        (b'{"topic":"T","body":"a","properties":{"a":""}}', "expected a name and a value"),
        (b'{"body":"a"}', "topic"),
        (b'{"topic":"a/b","body":"a"}', "topic"),
        (b'{"topic":"T","body":"a","queueId":-1}', "queue_id"),
        (b'{"topic":"T","body":"a","bornHost":"nowhere"}', "nowhere"),
    ],
)
def test_an_invalid_line_is_named_and_the_lines_before_are_stored(
    line: bytes, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b'{"topic":"T","body":"first"}\n' + line + b'\n{"topic":"T","body":"third"}\n')
    code, text, said = run(capsys, "import", tmp_path / "store", file, "--create")
    assert (code, text) == (ExitCode.USAGE, "")
    assert named in said
    assert f"1 messages were stored, none from line 2 of {file} on" in said
    assert "Traceback" not in said
    code, _, _ = run(capsys, "import", tmp_path / "store", file, "--skip", 2)
    assert code == ExitCode.OK
    with mqfast.StoreReader(tmp_path / "store") as reader:
        assert [bytes(m.body) for m in reader.messages("T", 0)] == [b"first", b"third"]


def test_an_import_needs_a_store_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lines"
    file.write_text('{"topic":"T","body":"a"}\n')
    assert run(capsys, "import", tmp_path / "store", file)[0] == ExitCode.USAGE
    assert run(capsys, "import", tmp_path / "store", tmp_path / "none", "--create")[0] == ExitCode.USAGE
    assert not (tmp_path / "store").exists()
    with mqfast.open(tmp_path / "store"):
        assert run(capsys, "import", tmp_path / "store", file)[0] == ExitCode.LOCKED
    assert run(capsys, "import", tmp_path / "store", file, "--tags", "a")[0] == ExitCode.USAGE


@pytest.mark.parametrize("way", ["msgspec", "json", "line by line"])
def test_an_import_stores_the_same_by_each_of_its_ways(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with mqfast.open(tmp_path / "from") as store:
        for n in range(300):
            store.put(
                f"T{n % 3}",
                b"\xff\n" * n if n % 7 == 0 else f"body {n} \N{SNOWMAN}".encode(),
                n % 4,
                tags="a" if n % 2 else None,
                keys=f"k{n}" if n % 5 else None,
                properties={f"p{n % 9}": "v\u2028", "flag": str(n)} if n % 3 else None,
                flag=n,
                born_timestamp=1_700_000_000_000 + n,
                born_host=f"10.0.0.{n % 200}:{n}",
                reconsume_times=n % 3,
            )
    assert run(capsys, "export", tmp_path / "from", tmp_path / "all.jsonl")[0] == ExitCode.OK
    if way != "msgspec":
        monkeypatch.setitem(sys.modules, "msgspec", None)
    if way == "line by line":
        monkeypatch.setattr(importing.RowPutter, "put", lambda self, lines: setattr(self, "passed", 0))
    else:
        monkeypatch.setattr(importing, "json_message", None)  # no line is left to the slow way
    code, text, _ = run(capsys, "import", tmp_path / "to", tmp_path / "all.jsonl", "--create")
    assert (code, text) == (ExitCode.OK, f"300 messages imported into {tmp_path / 'to'}\n")

    def content(path: Path) -> list[tuple[Any, ...]]:
        with mqfast.StoreReader(path) as reader:
            return [
                (m.topic, m.queue_id, m.queue_offset, bytes(m.body), m.properties_bytes, m.flag, m.born_timestamp,
                 m.born_host, m.reconsume_times, m.sys_flag)
                for queue in reader.queues() for m in reader.get(queue.topic, queue.queue_id, 0, 1000)
            ]  # fmt: skip

    assert content(tmp_path / "to") == content(tmp_path / "from")


def test_lines_of_a_pipe_are_stored_before_it_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mqfast.cli", "store", "import", str(tmp_path / "store"), "--create"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"topic":"T","body":"early"}\n')
        process.stdin.flush()
        until = time.monotonic() + 60
        found: list[bytes] = []
        while not found and time.monotonic() < until:
            with contextlib.suppress(mqfast.errors.MqfastError), mqfast.StoreReader(tmp_path / "store") as reader:
                found = reader.get("T", 0, 0).bodies()
            time.sleep(0.05)
        assert found == [b"early"]
        process.stdin.close()
        assert process.wait(200) == 0


def test_an_empty_message_is_stored_when_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "mqfast.cli", "store", "put", str(store), "T", "--create"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert "--empty" in done.stderr
    assert run(capsys, "put", store, "T", "", "--create")[0] == ExitCode.USAGE
    assert run(capsys, "put", store, "T", "text", "--empty", "--create")[0] == ExitCode.USAGE
    assert not store.exists()
    assert run(capsys, "put", store, "T", "--empty", "--create")[0] == ExitCode.OK
    with mqfast.StoreReader(store) as reader:
        assert reader.get("T", 0, 0).bodies() == [b""]

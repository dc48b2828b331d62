"""``python -m mqfast.bench`` and ``mqfast bench store``: what they print, how they end, what they leave.

It must never judge a figure: this is about the form, on any machine, however busy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqfast.bench.__main__ import main as bench_main
from mqfast.bench.load import Load, run
from mqfast.bench.suite import ROWS, Row, slower
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import main as cli_main
from mqfast.errors import StoreFailed, UsageError

PERCENTILES = ["p50", "p90", "p99", "p99.9", "p99.99", "max"]
QUICK = ["--seconds", "0.2", "--max-bytes", str(16 << 20)]


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run ``mqfast bench store`` in this process; its exit code, stdout and stderr."""
    code = cli_main(["bench", "store", *arguments])
    said = capsys.readouterr()
    return int(code), said.out, said.err


# --- one load ---


def test_async_load_has_both_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Page-cache rate is at least the durable one, percentiles rise, and nothing is left behind."""
    code, text, _ = cli(capsys, str(tmp_path), "--json", "--threads", "2", "--size", "100", "--queues", "3", *QUICK)
    assert code == ExitCode.OK
    (row,) = [json.loads(line) for line in text.splitlines()]
    assert row["load"]["threads"] == 2
    assert row["load"]["queues"] == 3
    assert row["messages"] > 0
    assert row["samples"] > 0
    assert row["page_cache_messages_per_s"] >= row["durable_messages_per_s"] > 0
    assert row["page_cache_bytes_per_s"] == pytest.approx(100 * row["page_cache_messages_per_s"])
    assert list(row["latency_ns"]) == PERCENTILES
    assert list(row["latency_ns"].values()) == sorted(row["latency_ns"].values())
    assert row["latency_ns"]["p50"] > 0
    assert row["durable_latency_ns"] is None
    assert list(tmp_path.iterdir()) == []


def test_sync_load_has_no_page_cache_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A put that waits for the disk has a durable figure only, and the disk was asked."""
    code, text, _ = cli(capsys, str(tmp_path), "--json", "--flush", "sync", *QUICK)
    assert code == ExitCode.OK
    row = json.loads(text)
    assert row["page_cache_messages_per_s"] is None
    assert row["latency_ns"] is None
    assert list(row["durable_latency_ns"]) == PERCENTILES
    assert row["sync_calls"] >= row["messages"]


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table for people names both columns and every percentile."""
    code, text, _ = cli(capsys, str(tmp_path), *QUICK)
    assert code == ExitCode.OK
    lines = text.splitlines()
    assert lines[0].startswith("1024 bytes, 1 thread, 1 queue, async flush, ")
    assert lines[1].split() == ["page", "cache", "durable"]
    names = [line.split("  ")[0] for line in lines[2:]]
    assert names == ["messages/s", "body bytes/s", *(f"put {name}" for name in PERCENTILES)]


def test_byte_budget_ends_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A load that is faster than its disk is large ends early and says so."""
    code, text, notes = cli(capsys, str(tmp_path), "--json", "--seconds", "600", "--max-bytes", str(16 << 20))
    assert code == ExitCode.OK
    row = json.loads(text)
    assert row["ended_by"] == "bytes"
    assert row["messages"] * 1024 < 16 << 20
    assert row["notes"]
    assert notes == ""


@pytest.mark.parametrize(
    "arguments", [["--threads", "0"], ["--queues", "0"], ["--seconds", "0"], ["--flush", "never"], ["--max-bytes", "1"]]
)
def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """One line and exit code 2."""
    code, text, error = cli(capsys, str(tmp_path), *arguments)
    assert code == ExitCode.USAGE
    assert text == ""
    assert len(error.splitlines()) == 1
    assert error.startswith("mqfast: ")


def test_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that is not there is a wrong argument, and is not made."""
    code, _, error = cli(capsys, str(tmp_path / "none"))
    assert code == ExitCode.USAGE
    assert "expected a directory" in error
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "size,threads,max_bytes", [(5 << 20, 2, 48 << 20), (1024, 4, 16 << 20), (0, 64, 16 << 20), (1 << 20, 1, 16 << 20)]
)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_no_load_writes_more_than_its_budget(
    tmp_path: Path, size: int, threads: int, max_bytes: int, flush: str
) -> None:
    """However large a body is and however many put: a disk that fills up is not only the bench's."""
    found = run(tmp_path, Load(threads=threads, size=size, flush=flush, seconds=0.3, max_bytes=max_bytes))
    assert found.messages > 0
    assert found.samples > 0
    assert (found.messages + found.samples) * (size + 91) <= max_bytes
    assert list(tmp_path.iterdir()) == []


def test_bodies_or_queues_that_are_too_much_for_the_budget(tmp_path: Path) -> None:
    """They are refused before anything is written."""
    with pytest.raises(UsageError, match="size"):
        Load(size=-1)
    with pytest.raises(UsageError, match=r"max_bytes: expected at least .* found 25,165,824"):
        run(tmp_path, Load(size=5 << 20, seconds=0.1, threads=2, max_bytes=24 << 20))
    with pytest.raises(UsageError, match="100000 queues; found 16,777,216"):
        run(tmp_path, Load(queues=100_000, seconds=0.1, max_bytes=16 << 20))
    assert list(tmp_path.iterdir()) == []


def test_a_failing_thread_ends_the_load(tmp_path: Path) -> None:
    """What a put raises in a thread comes out of run, and the store is removed."""

    def harm(_part: float) -> None:
        for file in tmp_path.glob("*/commitlog/*"):  # puts may be in any by now
            os.truncate(file, 0)

    with pytest.raises(StoreFailed):
        run(tmp_path, Load(size=1024, seconds=60, threads=2, max_bytes=4 << 30), harm)
    assert list(tmp_path.iterdir()) == []


def test_progress_rises_to_the_end(tmp_path: Path) -> None:
    """Progress is a part of the whole, never falling."""
    seen: list[float] = []
    run(tmp_path, Load(seconds=0.5, max_bytes=1 << 30, size=10, flush="sync"), seen.append)
    assert seen == sorted(seen)
    assert 0 < seen[-1] <= 1


# --- the table ---


def test_rows_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row has a floor, and at least one of the two columns."""
    assert bench_main(["--json", "--seconds", "0", "--path", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == list(ROWS)
    for row in rows:
        columns = [row["page_cache_ns"], row["durable_ns"]]
        assert any(columns), row
        assert all(value is None or value > 0 for value in columns), row
        assert row["floor_ns"] > 0
        assert row["floor"]
        assert row["machine"].keys() >= {"processor", "cores", "load", "system", "python", "mqfast"}
        if all(columns):
            assert row["durable_ns"] >= row["page_cache_ns"], row
    assert list(tmp_path.iterdir()) == []


def test_process(tmp_path: Path) -> None:
    """As users start it: a table, and exit code 0."""
    done = subprocess.run(
        [sys.executable, "-m", "mqfast.bench", "--seconds", "0", "--path", str(tmp_path), "--only", "put_many 64 B"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == [
        "one",
        "piece",
        "of",
        "work",
        *["page", "cache", "a", "second"],
        *["durable", "a", "second"],
        "floor",
    ]
    assert lines[2].startswith("put_many 64 B ")
    assert lines[3] == "floor of put_many 64 B: copy + CRC of the same bytes in memory"


def _row(**changes: Any) -> Row:
    return Row(
        **{"name": "put", "page_cache_ns": 300.0, "durable_ns": 900.0, "floor_ns": 150.0, "floor": "x", **changes}
    )


def test_slower_compares_ratios_to_the_floor() -> None:
    """A slower machine is no slower store; each column counts for itself; new rows have nothing to be compared with."""
    before = [_row().to_json()]
    assert slower([_row(page_cache_ns=600.0, durable_ns=1800.0, floor_ns=300.0)], before, 1) == []
    assert slower([_row(page_cache_ns=740.0)], before, 25) == []  # two runs of one build differ by a factor of two
    (line,) = slower([_row(page_cache_ns=780.0)], before, 25)
    assert line == "put, page cache: 5.20 times its floor, before 2.00"
    (line,) = slower([_row(durable_ns=2400.0)], before, 25)
    assert line.startswith("put, durable: ")
    assert slower([_row(), _row(name="other", page_cache_ns=1e9)], before, 25) == []


def test_rows_that_are_not_in_both_runs_are_no_comparison() -> None:
    """Nothing compared is no success: a file of other rows, or rows without a common column."""
    before = [_row().to_json()]
    with pytest.raises(UsageError, match="expected a row that is in both runs, found put in the earlier one and other"):
        slower([_row(name="other")], before, 25)
    with pytest.raises(UsageError, match="expected a row that is in both runs"):
        slower([], before, 25)
    with pytest.raises(UsageError, match="expected a row that is in both runs"):
        slower([_row(durable_ns=None)], [{**before[0], "page_cache_ns": None}], 25)


def test_compare_with_an_earlier_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 beside a file of an impossibly fast machine, 0 beside a slow one, 2 beside nonsense."""
    only = ["--seconds", "0", "--path", str(tmp_path), "--only", "get 32, bytes"]
    fast, slow, wrong = (tmp_path / name for name in ("fast", "slow", "wrong"))
    base = _row(name="get 32, bytes", durable_ns=None)
    fast.write_text(json.dumps({**base.to_json(), "page_cache_ns": 0.001}) + "\n")
    slow.write_text(json.dumps({**base.to_json(), "page_cache_ns": 1e9}) + "\n")
    wrong.write_text("[]\n")
    assert bench_main([*only, "--compare", str(fast)]) == 1
    assert "slower: get 32, bytes, page cache: " in capsys.readouterr().err
    assert bench_main([*only, "--compare", str(slow)]) == 0
    assert bench_main([*only, "--compare", str(wrong)]) == 2
    assert "expected what --json printed" in capsys.readouterr().err
    assert bench_main(["--path", str(tmp_path / "none")]) == 2
    other = tmp_path / "other"
    other.write_text(json.dumps(_row(name="query by key").to_json()) + "\n")
    assert bench_main([*only, "--compare", str(other)]) == 2
    assert "expected a row that is in both runs" in capsys.readouterr().err

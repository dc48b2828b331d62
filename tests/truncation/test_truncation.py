"""Somebody else cuts short or removes a file of the store: an error of ours, never a SIGBUS, never a false promise.

Room: tests/truncation. Every scenario of scenarios.py runs as a child; a child that ends by a signal fails its test.
What the guard can promise and what it cannot is the theory at the head of ``csrc/sigbus_guard.c``. It must never touch
a store itself. MQFAST_LONG=1 hammers longer, and on the disk instead of in memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCENARIOS = Path(__file__).with_name("scenarios.py")
LONG = os.environ.get("MQFAST_LONG") == "1"
HAMMERS = 200 if LONG else 3
OURS = {"CorruptFile", "StoreFailed", "FlushError", "StorageError", "StoreNotFound"}


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: lost pages are the same there, and making files costs no sync."""
    memory = Path("/dev/shm")
    if LONG or not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="mqfast-") as name:
        yield Path(name)


def child(scenario: str, path: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run a scenario in a process of its own."""
    command = [sys.executable, str(SCENARIOS), scenario, str(path / "store"), json.dumps(arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def report_of(scenario: str, path: Path, *arguments: Any) -> dict[str, Any]:
    """What the scenario reported; fails when it ended in any other way."""
    ended = child(scenario, path, *arguments)
    assert ended.returncode == 0, f"{scenario} {arguments} ended with {ended.returncode}:\n{ended.stderr[-2000:]}"
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


WAYS = ["put", "producer", "producer with key", "put_many", "put_batch", "put with properties", "put_nowait"]
INLINE = {"dispatch": "inline"}
SYNC = {"flushDiskType": "SYNC_FLUSH"}
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 2}


@pytest.mark.parametrize(
    "kind,way,settings",
    [
        *(("0", way, {}) for way in WAYS),
        ("other process", "put", {}),
        ("8192", "put", INLINE),
        ("5000", "put_many", INLINE),
        ("0", "put", SYNC),
        ("0", "put", SYNC | INLINE),
        ("remove", "put", SYNC),
        ("remove", "put_batch", SYNC),
    ],
)
def test_a_put_into_a_log_file_that_is_gone_is_not_acknowledged(
    tmp_path: Path, kind: str, way: str, settings: dict[str, Any]
) -> None:
    report = report_of("log_under_writer", tmp_path, kind, way, settings)
    done, name, text = report["refused"]
    assert (done, name in ("StoreFailed", "FlushError")) == (0, True), report
    # The flush thread may meet the loss before the put does; the put then says that the store was latched.
    if kind != "remove" and "was latched" not in text:
        assert "00000000000000000000" in text
        assert "position" in text
    assert report["flush"][0] == "StoreFailed"
    assert report["again"][:2] == [0, "StoreFailed"]
    assert report["state"] == "failed"
    assert report["abort"], "a store that lost something was called clean"
    assert report["guarded"] == 0


@pytest.mark.parametrize("kind,settings", [("remove", {}), ("remove", INLINE), ("0", POOL), ("remove", POOL)])
def test_a_flush_of_a_log_file_that_is_gone_fails(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    # the mapping or the buffer takes the put; async flush promised no more than that so far
    report = report_of("log_under_writer", tmp_path, kind, "put", settings)
    assert report["flush"][0] in ("StoreFailed", "FlushError")
    assert report["again"][:2] == [0, "StoreFailed"]
    assert report["state"] == "failed"
    assert report["abort"]


@pytest.mark.parametrize("settings", [{}, POOL], ids=["mapped", "pool"])
def test_bytes_that_are_gone_are_not_called_durable_though_nobody_touched_them(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Mapped, the page of the next put tells as well; with the pool only the length of the file does."""
    report = report_of("unflushed_without_touch", tmp_path, settings)
    assert report["pages"] == 0, "a page was touched: the test does not show what it should"
    assert report["flush"][0] in ("StoreFailed", "FlushError")
    assert report["flushed"] <= report["end"]
    assert report["state"] == "failed"


@pytest.mark.parametrize("dispatch", ["inline", "background"])
def test_a_queue_file_cut_short_under_its_writer_latches_the_store(tmp_path: Path, dispatch: str) -> None:
    report = report_of("queue_under_writer", tmp_path, "0", dispatch)
    assert report["max"] == 40
    assert report["refused"][1] == "StoreFailed"
    assert "consumequeue/T/0/00000000000000000000" in report["refused"][2]
    assert report["get"][0] in ("CorruptFile", "StoreFailed")
    assert report["state"] == "failed"
    assert report["abort"]


@pytest.mark.parametrize("dispatch", ["inline", "background"])
def test_a_queue_file_that_was_removed_shows_at_the_next_flush_of_queues(tmp_path: Path, dispatch: str) -> None:
    report = report_of("queue_under_writer", tmp_path, "remove", dispatch)
    assert report["refused"][1] == "ok", "the log has the messages: they are safe"
    assert "no file" in report["service_errors"]["flush"]
    assert report["close"][0] == "CorruptFile"
    assert report["abort"]


@pytest.mark.parametrize("dispatch", ["inline", "background"])
@pytest.mark.parametrize("kind", ["0", "remove"])
def test_an_index_file_that_is_gone_is_never_called_flushed(tmp_path: Path, kind: str, dispatch: str) -> None:
    report = report_of("index_under_writer", tmp_path, kind, dispatch)
    assert report["before"] == ["ok", "1"]
    assert report["put"][1] == "ok", "the log has the messages: they are safe"
    assert report["query"] == ["ok", "1"] if kind == "remove" else report["query"][0] == "CorruptFile"
    assert report["flush"][0] == "FlushError"
    assert report["close"][0] in OURS
    assert report["abort"]


@pytest.mark.parametrize("kind", ["0", "4096"])
def test_a_reader_of_an_old_log_file_that_was_cut_short_gets_an_error(tmp_path: Path, kind: str) -> None:
    report = report_of("old_log_under_reader", tmp_path, kind)
    for call in ("get", "look", "query", "numpy"):
        assert report[call][0] == "CorruptFile", call
        assert "commitlog/00000000000000000000" in report[call][1]
    assert report["newer"] == ["ok", "9"]
    assert report["put"] == [50, "ok", ""], "the writer does not need that file"
    assert report["flush"] == ["ok", "True"]
    assert report["state"] == "open"


@pytest.mark.parametrize("scenario", ["old_log_under_reader", "old_queue_under_reader"])
def test_a_removed_file_that_is_mapped_is_read_on(tmp_path: Path, scenario: str) -> None:
    report = report_of(scenario, tmp_path, "remove")
    assert report["get"] == ["ok", "32"]
    assert report["newer"] == ["ok", "9"]
    assert report["put"] == [50, "ok", ""]


def test_a_reader_of_an_old_queue_file_that_was_cut_short_gets_an_error(tmp_path: Path) -> None:
    report = report_of("old_queue_under_reader", tmp_path, "0")
    assert report["get"][0] == "CorruptFile"
    assert "consumequeue/T/0/00000000000000000000" in report["get"][1]
    assert report["newer"] == ["ok", "9"]
    assert report["put"] == [50, "ok", ""]


def test_views_that_were_taken_before_stay_readable_and_everything_new_raises(tmp_path: Path) -> None:
    report = report_of("held_results", tmp_path)
    assert report["view"] == ["ok", "True"], "a view shows zeros where the file is gone"
    assert report["after close"] == ["ok", "True"]
    for call in ("fresh", "body", "bodies", "numpy", "arrow"):
        assert report[call][0] == "CorruptFile", call


@pytest.mark.parametrize("which", ["log", "queue"])
def test_a_file_that_is_cut_short_during_recovery_fails_the_open(tmp_path: Path, which: str) -> None:
    report = report_of("during_recovery", tmp_path, which)
    assert report["open"][0] in ("CorruptFile", "StoreFailed")
    assert ("commitlog" if which == "log" else "consumequeue") in report["open"][1]
    assert report["guarded"] == 0


@pytest.mark.parametrize("which", ["log", "queue", "index"])
@pytest.mark.parametrize("kind", ["0", "5000", "remove"])
def test_a_store_reader_gets_errors_or_right_answers(tmp_path: Path, which: str, kind: str) -> None:
    report = report_of("store_reader", tmp_path, which, kind)
    right = {"get": {"32"}, "look": {"500"}, "query": {"1", "0"}, "scan": {"1739", "3479"}}
    for call, answers in right.items():
        name, text = report[call]
        assert name in OURS or (name == "ok" and text in answers), (call, report[call])
    touched = {"log": ["get", "query", "scan"], "queue": ["get"], "index": []}[which]
    for call in touched if kind == "0" else []:
        assert report[call][0] == "CorruptFile", call
    assert report["seconds"] < 100


def test_damage_of_one_store_is_its_own_and_the_guard_outlives_them(tmp_path: Path) -> None:
    report = report_of("two_stores", tmp_path)
    assert report["one"][:2] == [0, "StoreFailed"]
    assert report["state one"] == "failed"
    assert report["two"] == [200, "ok", ""]
    assert report["state two"] == "open"
    assert report["close two"] == ["ok", "None"]
    assert report["guarded"] == 0
    assert report["three"][:2] == [0, "StoreFailed"]


def test_the_table_grows_and_takes_slots_again(tmp_path: Path) -> None:
    report = report_of("many_mappings", tmp_path)
    assert report["guarded"] > 600
    assert report["later"] == report["guarded"] - 300 + 100
    assert report["dispatch"][0] == "StoreFailed"
    assert "consumequeue/T/0" in report["dispatch"][1]
    assert report["put"][:2] == [0, "StoreFailed"]
    assert report["closed"] == 0


@pytest.mark.parametrize("enabled,prints", [("before", 1), ("after", 1), ("never", 0)])
def test_a_fault_of_somebody_else_ends_the_process_as_before(tmp_path: Path, enabled: str, prints: int) -> None:
    ended = child("foreign_fault", tmp_path, enabled)
    assert '"foreign": "touched"' in ended.stdout, ended.stderr
    assert ended.returncode == -signal.SIGBUS
    assert ended.stderr.count("Fatal Python error: Bus error") == prints


def test_the_handlers_of_others_are_left_alone_and_put_back(tmp_path: Path) -> None:
    assert report_of("handler_of_others", tmp_path) == {"ours": True, "restored": True, "left alone": True}


def test_a_store_that_refuses_the_guard_has_no_handler(tmp_path: Path) -> None:
    ended = child("refused_guard", tmp_path)
    assert '"no handler": true' in ended.stdout, ended.stderr
    assert "outlived" not in ended.stdout
    assert ended.returncode == -signal.SIGBUS


def test_a_sent_signal_means_what_it_meant(tmp_path: Path) -> None:
    assert child("sent_signal", tmp_path / "d", "default").returncode == -signal.SIGBUS
    assert report_of("sent_signal", tmp_path / "p", "python handler")["calls"] == 3
    assert report_of("sent_signal", tmp_path / "i", "ignored")["put"][1] == "StoreFailed"


@pytest.mark.parametrize("seed", range(HAMMERS))
def test_threads_outlive_a_cut_at_a_random_moment(tmp_path: Path, seed: int) -> None:
    report = report_of("hammer", tmp_path, seed)
    assert set(report["ended"]) <= OURS | {"ok"}
    assert len(report["ended"]) == 3
    if report["which"] == "log" and report["files"] == 1:  # else nobody may need that file any more
        assert "ok" not in report["ended"], "somebody did not notice that the log file is gone"
        assert report["abort"]

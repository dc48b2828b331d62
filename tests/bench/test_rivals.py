"""The comparison with other stores (bench/rivals): the measuring processes, and what is made of their answers.

It must never fetch anything: only what the standard library has, mqfast and the floor in C are run here.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RIVALS = ROOT / "bench" / "rivals"


class Worker:
    """One worker.py."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(RIVALS / "worker.py"), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *words: object) -> dict[str, Any]:
        """One command."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> int:
        """Its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(200)
        self.process.stdout.close()
        return code


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["mqfast", "mqfast, pool", "sqlite3 WAL", "write + fdatasync"])
def test_a_rival_in_its_process(name: str, tmp_path: Path) -> None:
    """Every command is answered, in both modes, and counts what it did."""
    worker = Worker(name)
    try:
        assert worker.ask("open", tmp_path / "cache", "cache") == {}
        single = worker.ask("single", 1024, 0.05, 1)
        assert single["count"] > 0
        assert single["ns"] > 0
        batch = worker.ask("batch", 64, 0.05)
        assert batch["count"] % 1000 == 0
        assert batch["count"] > 0
        (timed,) = worker.ask("timed", 1024, 0.05).values()
        assert [value for value, _ in timed] == sorted(value for value, _ in timed)
        paced = worker.ask("paced", 1024, 1000, 0.1, 0)
        for part in ("due", "call"):
            assert sum(count for _, count in paced[part]) == 100
        assert paced["due"][-1][0] >= paced["call"][-1][0]
        assert worker.ask("close") == {}
        assert worker.ask("open", tmp_path / "durable", "durable") == {}
        assert worker.ask("single", 1024, 0.05, 1)["count"] > 0
        several = worker.ask("single", 1024, 0.05, 4)
        assert ("skip" in several) is not name.startswith("mqfast")
        assert worker.ask("close") == {}
    finally:
        assert worker.end() == 0


def test_the_log_in_c(tmp_path: Path) -> None:
    """At a pace it answers as the others do, for all of its records; without its folder it says so."""
    worker = Worker("log in C (floor)")
    try:
        assert worker.ask("open", tmp_path / "store", "cache") == {}
        paced = worker.ask("paced", 1024, 10_000, 0.7, 0)  # longer than its time between two syncs
        for part in ("due", "call"):
            assert sum(count for _, count in paced[part]) == 7000
        assert min(value for value, _ in paced["call"]) > 10
        assert "skip" in worker.ask("single", 1024, 0.05, 1)
        assert "skip" in worker.ask("timed", 1024, 0.05)
        assert list((tmp_path / "store").iterdir()) == []  # its file has no name
        (tmp_path / "store").rmdir()
        assert "OSError" in worker.ask("paced", 1024, 10_000, 0.01, 0)["error"]
        assert worker.ask("close") == {}
    finally:
        assert worker.end() == 0


def affinities(process: int) -> dict[int, set[int]]:
    """Where each thread of the process, and of those it started, may run; by its number."""
    found: dict[int, set[int]] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # it ended meanwhile
                found[int(task.name)] = os.sched_getaffinity(int(task.name))
                for child in (task / "children").read_text().split():
                    found |= affinities(int(child))
    return found


@pytest.mark.sampled(1)
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are kept on processors by Linux only")
@pytest.mark.parametrize(
    ("name", "least"),
    [("mqfast", 5), ("log in C (floor)", 2), ("hot memory beside a plain writer (noise)", 3)],
)
def test_the_loop_has_its_processor_to_itself(run: ModuleType, name: str, least: int, tmp_path: Path) -> None:
    """While it puts at a pace, none of the others of its process, or of one that it started, may run there."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one processor")
    (tmp_path / "place").mkdir()
    rival = run.Process(
        name, [sys.executable, str(RIVALS / "worker.py"), name], "", tmp_path / "place", most_bytes=1 << 30
    )
    try:
        end = time.monotonic() + 120  # a busy machine may need several tries of 5 s to make the first log file
        while "error" in (first := rival.measure("cache", "paced", 1024, 1000, 0.01, 0)):
            assert "was not ready" in first["error"], first
            assert time.monotonic() < end, first
        loop = rival.ask("thread")["thread"]
        answers: list[dict[str, Any]] = []
        words = ("cache", "paced", 1024, 1000, 2.0, 0)
        measuring = threading.Thread(target=lambda: answers.append(rival.measure(*words, processor=max(allowed))))
        measuring.start()
        alone = False
        while measuring.is_alive() and not alone:
            found = affinities(rival.process.pid)
            alone = (
                found.pop(loop) == {max(allowed)}
                and len(found) >= least
                and all(where == allowed - {max(allowed)} for where in found.values())
            )
        measuring.join()
        assert alone
        assert sum(count for _, count in answers[0]["due"]) == 2000
        assert os.sched_getaffinity(loop) == allowed
    finally:
        rival.close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells the state of a process")
def test_the_others_stand_still_meanwhile(run: ModuleType, tmp_path: Path) -> None:
    """And go on afterwards, whatever became of the measurement; one that ended is no failure."""

    def state(rival: Any) -> str:
        return Path(f"/proc/{rival.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    name = "write + fdatasync"
    command = [sys.executable, str(RIVALS / "worker.py"), name]
    rivals = [run.Process(name, command, "", tmp_path / str(number), most_bytes=1 << 30) for number in range(3)]
    try:
        for number, rival in enumerate(rivals):
            (tmp_path / str(number)).mkdir()
            assert "thread" in rival.ask("thread")
        with contextlib.suppress(KeyError), run.stopped(rivals[1:]):
            assert rivals[0].measure("cache", "single", 100, 0.01, 1)["count"] > 0
            assert state(rivals[1]) == "T"
            rivals[2].process.kill()
            rivals[2].process.wait()
            raise KeyError
        assert "thread" in rivals[1].ask("thread")
    finally:
        for rival in rivals:
            rival.close()


def test_the_bare_rival_writes_the_measured_bytes(tmp_path: Path) -> None:
    """What the bare rival was told to write is in its file: nothing is measured that was not done."""
    worker = Worker("write + fdatasync")
    assert worker.ask("open", tmp_path / "store", "cache") == {}
    count = worker.ask("single", 100, 0.02, 1)["count"]
    assert worker.ask("close") == {}
    assert worker.end() == 0
    assert (tmp_path / "store" / "log").stat().st_size == 100 * count


def test_a_failure_is_an_answer(tmp_path: Path) -> None:
    """An exception of a rival does not end its process."""
    worker = Worker("mqfast")
    assert "error" in worker.ask("single", 1024, 0.01, 1)
    (tmp_path / "file").touch()
    assert "error" in worker.ask("open", tmp_path / "file", "cache")
    assert worker.ask("open", tmp_path / "store", "cache") == {}
    assert worker.ask("close") == {}
    assert worker.end() == 0


def test_a_rival_that_was_killed(run: ModuleType, tmp_path: Path) -> None:
    """What is asked of it has an error for an answer, and it can be closed: the run goes on to put the machine back."""
    name = "write + fdatasync"
    rival = run.Process(name, [sys.executable, str(RIVALS / "worker.py"), name], "", tmp_path, most_bytes=1 << 20)
    assert rival.at("cache", 0) == {}
    rival.process.kill()
    assert "ended with -9" in rival.ask("single", 40, 0.01, 1)["error"]
    assert "ended with -9" in rival.ask("single", 40, 0.01, 1)["error"]
    rival.close()


def test_targets_and_document(run: ModuleType) -> None:
    """Ratios are judged by the medians of the same run; what was not measured makes no row."""
    results = run.Results()
    for value in (200.0, 210.0, 900.0):
        results.add("put 1 KiB", "mqfast", {"ns": value})
    results.add("put 1 KiB", "floor in C", {"ns": 150.0})
    results.add("put 40 B", "mqfast", {"ns": 90.0})
    results.add("put 40 B", run.CHRONICLE, {"ns": 140.0})
    results.add(run.KEYWORDS, "mqfast", {"ns": 120.0})
    results.add("durable 1 KiB, 16 threads", "mqfast", {"ns": 40_000.0})
    results.add("durable 1 KiB, 16 threads", run.ROCKETMQ, {"ns": 100_000.0})
    results.add("durable 1 KiB", "lmdb", {"error": "it broke"})
    rows = {row[0]: row for row in run.targets(results)}
    what = rows["put 40 B from Python, mqfast"]
    assert what[1:4] == ("0.64x (90 ns, 140 ns)", f"<= 0.6x {run.CHRONICLE}", False)
    assert rows["sync flush, 16 waiters"][3:5] == (True, "durable")
    assert rows[f"{run.KEYWORDS}, mqfast"][1:4] == ("0.86x (120 ns, 140 ns)", f"<= 1x {run.CHRONICLE}", True)
    assert len(rows) == 3

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    processes = [Named("mqfast"), Named("lmdb"), Named(run.CHRONICLE)]
    text = run.document(processes, results, ["a machine"], ["x is left out: why"], list(rows.values()))
    assert "| mqfast | 90 ns | 120 ns | 210 ns | - | - | - | 25.0 k/s | - |" in text
    assert f"| put 40 B from Python, mqfast | 0.64x (90 ns, 140 ns) |  |  | <= 0.6x {run.CHRONICLE} |" in text
    assert "- x is left out: why" in text
    assert "- lmdb: durable 1 KiB not measured (it broke)" in text


def test_a_row_has_its_baseline_and_its_jitter(run: ModuleType) -> None:
    """What the same work takes in C, and what a loop that stores nothing has, stand in columns of their own; a row is
    met or missed.
    """
    pytest.importorskip("hdrh.histogram")
    results = run.Results()
    results.add("durable 1 KiB", "mqfast", {"ns": 200_000.0})
    results.add("durable 1 KiB", run.ROCKETMQ, {"ns": 280_000.0})
    results.add("durable 1 KiB", run.FLOOR, {"ns": 150_000.0})
    for name, ns in (("mqfast", 30_000), (run.NOISE, 400), (run.NOISE_BESIDE, 600), (run.FLOOR_PACED, 700)):
        results.add("paced 20,000/s", name, {"due": [[ns, 1000]]})
    rows = {row.what: row for row in run.targets(results)}
    sync = rows["sync flush, 1 waiters"]
    assert (sync.met, sync.baseline, sync.jitter) == (False, "6.7 k/s", "")
    tail = rows["p99 at 20,000/s, mqfast"]
    assert (tail.met, tail.baseline, tail.jitter) == (False, "700 ns", "400 ns, beside a writer 600 ns")
    text = run.document([], results, [], [], list(rows.values()))
    assert "| what | measured | C baseline | jitter | target | durability |  |" in text
    assert "| 700 ns | 400 ns, beside a writer 600 ns | <= 1.00 us | page cache | missed |" in text


def test_a_tail_that_one_turn_makes(run: ModuleType) -> None:
    """A stall in one turn is missed by all turns as one; the median over the turns is printed beside it. Fewer turns
    than a median is told of make none.
    """
    pytest.importorskip("hdrh.histogram")

    def judged(turns: int) -> Any:
        results = run.Results()
        for number in range(turns):
            for name, ns in (("mqfast", 800), (run.NOISE, 500), (run.CHRONICLE, 900)):
                stalled = name == "mqfast" and number == 0
                results.add("paced 20,000/s", name, {"due": [[ns, 990], [9_000_000 if stalled else ns, 10]]})
        return results, {row.what: row for row in run.targets(results)}

    results, rows = judged(7)
    row = rows["p99.9 at 20,000/s, mqfast"]
    assert (row.met, row.measured, row.jitter) == (False, "9.00 ms / 800 ns", "500 ns / 500 ns")
    assert rows["p99 at 20,000/s, mqfast"].met
    assert rows["p99 to max at 20,000/s, mqfast"].met is False

    class Named:
        name = "mqfast"

    text = run.document([Named()], results, [], [], list(rows.values()))
    assert "| <= 3.00 us | page cache | missed |" in text
    assert "| paced 20,000/s, response time | mqfast | 800 ns | 800 ns | 800 ns | 800 ns | 800 ns | 800 ns |" in text
    results, rows = judged(6)
    row = rows["p99.9 at 20,000/s, mqfast"]
    assert (row.met, row.measured, row.jitter) == (False, "9.00 ms", "500 ns")
    assert "median over the turns:" not in run.document([Named()], results, [], [], [])


def test_the_document_keeps_what_is_around(run: ModuleType, tmp_path: Path) -> None:
    """Only what stands between the marks is replaced."""
    path = tmp_path / "benchmarks.md"
    run.insert(path, "first")
    path.write_text("before\n" + path.read_text() + "after\n")
    run.insert(path, "second")
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "second" in text
    assert "first" not in text
    assert text.count(run.BEGIN) == text.count(run.END) == 1
    assert run.BEGIN in (ROOT / "docs" / "dev" / "benchmarks.md").read_text()

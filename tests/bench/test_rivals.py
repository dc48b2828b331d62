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
        code = self.process.wait(60)
        self.process.stdout.close()
        return code


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
        for part in ("due", "call", "alone"):
            assert sum(count for _, count in paced[part]) == 100
        assert paced["due"][-1][0] >= paced["alone"][-1][0] >= paced["call"][-1][0]
        assert {"slept", "lost"} <= paced.keys()
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
        for part in ("due", "call", "alone"):
            assert sum(count for _, count in paced[part]) == 7000
        assert "slept" not in paced  # its threads are waited for by the same call
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
        assert "error" not in rival.measure("cache", "paced", 1024, 1000, 0.01, 0)
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


def test_the_bytes_are_there(tmp_path: Path) -> None:
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
    assert "by the calls alone" not in run.document(processes, results, [], [], [])
    text = run.document(processes, results, ["a machine"], ["x is left out: why"], list(rows.values()))
    assert "| mqfast | 90 ns | 120 ns | 210 ns | - | - | - | 25.0 k/s | - |" in text
    assert "| put 40 B from Python, mqfast | 0.64x (90 ns, 140 ns) |" in text
    assert "- x is left out: why" in text
    assert "- lmdb: durable 1 KiB not measured (it broke)" in text


def test_a_miss_is_explained_by_a_floor_of_the_same_run(run: ModuleType) -> None:
    """Only where what the floor measured shows that nothing could get there; a bad figure alone is no reason."""

    def why(floor_ns: float) -> str:
        results = run.Results()
        results.add("durable 1 KiB", "mqfast", {"ns": 200_000.0})
        results.add("durable 1 KiB", run.ROCKETMQ, {"ns": 280_000.0})
        results.add("durable 1 KiB", run.FLOOR, {"ns": floor_ns})
        (row,) = run.targets(results)
        assert row[3] is False
        return str(row[5])

    assert "make 6.7 k/s" in why(150_000.0)
    assert why(120_000.0) == ""
    assert "sync flush, 1 waiters (>= 2x RocketMQ): not explained" in run.document(
        [], run.Results(), [], [], [run.Target("sync flush, 1 waiters", "1.4x", ">= 2x RocketMQ", False, "durable", "")]
    )


@pytest.mark.parametrize(
    ("noise", "beside", "bare", "explained"),
    [(20_000, 20_000, 500, True), (500, 9_000, 500, False), (500, 600, 9_000, True), (500, 600, 700, False)],
)
def test_a_tail_is_explained_by_the_noise_of_the_same_run(
    run: ModuleType, noise: int, beside: int, bare: int, explained: bool
) -> None:
    """A loop that stores nothing missed the target as well, or a log in C that does nothing but copy, make pages and
    sync them; what another process' writing does to that loop is shown, and is no reason where the log in C gets there.
    """
    pytest.importorskip("hdrh.histogram")
    results = run.Results()
    for name, ns in (
        ("mqfast", 30_000),
        (run.NOISE, noise),
        (run.NOISE_BESIDE, beside),
        (run.FLOOR_PACED, bare),
    ):
        results.add("paced 20,000/s", name, {"due": [[ns, 1000]]})
    row = next(row for row in run.targets(results) if row[0] == "p99 at 20,000/s, mqfast")
    assert row[3] is False
    assert bool(row[5]) is explained


@pytest.mark.parametrize(
    ("ours", "noise", "explained"), [(11, 9, True), (11, 8, False), (20, 9, False), (10, 0, False)]
)
def test_a_tail_is_explained_by_how_many_are_late_without_us(
    run: ModuleType, ours: int, noise: int, explained: bool
) -> None:
    """Of 1,000 puts so many are late: to what the machine alone makes late we add at most a quarter of the ten that may
    be.
    """
    pytest.importorskip("hdrh.histogram")
    results = run.Results()
    for name, late in (("mqfast", ours), (run.NOISE, noise), (run.FLOOR_PACED, 0)):
        results.add("paced 20,000/s", name, {"due": [(500, 1000 - late), (30_000, late)], "call": [(400, 1)]})
    row = next(row for row in run.targets(results) if row.what == "p99 at 20,000/s, mqfast")
    assert row.met == (ours <= 10)
    assert bool(row.why) == explained
    if explained:
        assert row.why.startswith("1 % may take more than 1.00 us, and 1.1 % did; a loop that only copies into hot")
        assert "made 0.9 % late, the log in C 0 %" in row.why


@pytest.mark.parametrize(
    ("alone", "told_alone", "told", "explained"),
    [
        (70_000, "70.02 us", {"slept": 3, "lost": 2}, True),
        (90_000, "90.05 us", {"slept": 3, "lost": 2}, False),
        (70_000, "70.02 us", {}, False),
    ],
)
def test_a_long_tail_is_explained_by_what_the_calls_alone_make(
    run: ModuleType, alone: int, told_alone: str, told: dict[str, int], explained: bool
) -> None:
    """The calls meet the limit of p99.99 where the loop stood between them; where it is not known how often it slept,
    or the calls miss it, that is no reason, and for p99.9 it never is.
    """
    pytest.importorskip("hdrh.histogram")
    results = run.Results()
    for _ in range(2):
        for name, late in (("mqfast", 150_000), (run.NOISE, 40_000), (run.FLOOR_PACED, 60_000)):
            due, calls = [[500, 997], [2000, 2], [late, 1]], [[500, 999], [alone, 1]]
            if name == "mqfast":
                due = [[500, 997], [4000, 2], [late, 1]]
            results.add("paced 200,000/s", name, {"due": due, "call": [[400, 1]], "alone": calls, **told})
    rows = {row.what: row for row in run.targets(results)}
    row = rows["p99.99 at 200,000/s, mqfast"]
    assert row.measured.endswith(f"a log in C 60.03 us; by the calls alone {told_alone})")
    assert (row.met, bool(row.why)) == (False, explained)
    if explained:
        assert row.why.startswith("its calls alone, each behind those before it at that pace, would make p99.99 70.02")
        assert "slept 6 times and lost its processor 4 times" in row.why
    short = rows["p99.9 at 200,000/s, mqfast"]
    assert (short.met, short.why) == (False, "")


@pytest.mark.parametrize(("noise", "explained"), [(25_000, True), (15_000, False)])
def test_a_tail_beside_another_store(run: ModuleType, noise: int, explained: bool) -> None:
    """Worse than it, but so was a loop that stores nothing; or that one was better."""
    pytest.importorskip("hdrh.histogram")
    results = run.Results()
    for name, ns in (("mqfast", 30_000), (run.CHRONICLE, 20_000), (run.NOISE, noise), (run.NOISE_BESIDE, noise)):
        results.add("paced 20,000/s", name, {"due": [[ns, 1000]]})
    row = next(row for row in run.targets(results) if row[0] == "p99 to max at 20,000/s, mqfast")
    assert row[3] is False
    assert bool(row[5]) is explained


@pytest.mark.parametrize(
    ("part", "theirs", "explained"), [("p99.99", 90_000, True), ("p99.99", 60_000, False), ("p99.9", 90_000, False)]
)
def test_a_long_tail_beside_another_store(run: ModuleType, part: str, theirs: int, explained: bool) -> None:
    """Worse than it from when due, and better by the calls alone: then the loop stood between two calls. Where the
    calls alone are worse as well, or the tail is a shorter one, that is no reason.
    """
    pytest.importorskip("hdrh.histogram")
    results = run.Results()
    late = 1 if part == "p99.99" else 2
    for name, due, alone in (
        ("mqfast", 30_000_000, 70_000),
        (run.CHRONICLE, 20_000_000, theirs),
        (run.NOISE, 500, 500),
    ):
        tail = [[500, 1000 - late], [due, late]], [[500, 1000 - late], [alone, late]]
        answer = {"due": tail[0], "call": [[400, 1]], "alone": tail[1], "slept": 1, "lost": 0}
        results.add("paced 20,000/s", name, answer)
    row = next(row for row in run.targets(results) if row.what == "p99 to max at 20,000/s, mqfast")
    assert (row.met, bool(row.why)) == (False, explained)
    if explained:
        assert "would make p99.99 70.02 us, max 70.02 us (the other store's p99.99 90.05 us, max 90.05 us): " in row.why


def test_a_tail_that_one_turn_makes(run: ModuleType) -> None:
    """A stall in one turn is missed by all turns as one, and told apart by the median over them; both are printed.
    Fewer turns than a median is told of make none.
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
    assert row.measured.startswith("9.00 ms / 800 ns (noise 500 ns / 500 ns,")
    assert (row.met, row.median_turn, row.why) == (False, True, "")
    assert (rows["p99 at 20,000/s, mqfast"].met, rows["p99 at 20,000/s, mqfast"].median_turn) == (True, False)
    beside = rows["p99 to max at 20,000/s, mqfast"]
    assert (beside.met, beside.median_turn) == (False, True)

    class Named:
        name = "mqfast"

    text = run.document([Named()], results, [], [], list(rows.values()))
    assert "| <= 3.00 us | page cache | missed; median turn met |" in text
    assert "- p99.9 at 20,000/s, mqfast (<= 3.00 us): not explained" in text
    results.add("paced 20,000/s", "mqfast", {"alone": [[700, 10]]})
    assert "| paced 20,000/s, by the calls alone | mqfast | 700 ns |" in run.document([Named()], results, [], [], [])
    assert "| paced 20,000/s, from when due | mqfast | 800 ns | 800 ns | 800 ns | 800 ns | 800 ns | 800 ns |" in text
    for ns, by_turn in ((110_000, True), (130_000, False)):  # beside twice the noise of the median turn, 60 us
        results = run.Results()
        for number in range(7):
            results.add("paced 20,000/s", run.NOISE, {"due": [[4_000_000 if number == 0 else 60_000, 1000]]})
            results.add("paced 20,000/s", "mqfast", {"due": [[9_000_000 if number == 0 else ns, 1000]]})
        row = next(row for row in run.targets(results) if row.what == "p99.99 at 20,000/s, mqfast")
        assert (row.met, row.median_turn) == (False, by_turn)
    results, rows = judged(6)
    row = rows["p99.9 at 20,000/s, mqfast"]
    assert row.measured.startswith("9.00 ms (noise 500 ns,")
    assert (row.met, row.median_turn) == (False, False)
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

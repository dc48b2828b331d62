"""Instruction counts of the hot paths, and the guard over them: ``make perf-check`` and ``make perf-baseline``.

Time says little on a shared machine; the number of instructions of one put does not depend on who else runs. Each case
runs in a process of its own under ``valgrind --tool=callgrind`` (Debian package ``valgrind``), does its work N times
and then 2N times, and the difference over N is the count of one piece of work: start-up, imports and loop set-up
cancel out (``mqfast.bench.counts``). Two numbers a case: instructions inside mqfast's own extension modules, and all
instructions with the interpreter and the C library. No service thread runs, the clock stands still, hashes are not
random.

What it cannot see: cache misses, page faults, waiting, and the AVX-512 code, which valgrind does not know (the CRC then
takes its best other variant, named in the key of the baseline). It must never compare counts of different Python minor
versions, Cython versions or compilers: without a baseline of its own key a run passes and says so.

    python bench/counts.py              counts beside bench/baseline.json; status 1 above +3 %
    python bench/counts.py --write      make these counts the baseline
    python bench/counts.py put_1k ...   only these cases
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mqfast.bench import counts as _counts  # noqa: E402  (of this tree, not an installed package)
from mqfast.bench.counts import Count  # noqa: E402
from mqfast.errors import UsageError  # noqa: E402

BASELINE = ROOT / "bench" / "baseline.json"
LIMIT = 0.03
# "all" has the interpreter and the C library in it: where objects lie decides how often a dict is probed, so the same
# build differs by up to 6 % between two directories or processors.
WHOLE_LIMIT = 0.10
FIXED_MS = 1_750_000_000_000
LOG_BYTES = 32 << 20
KEY_SETTINGS = {"maxHashSlotNum": 20_000, "maxIndexNum": 100_000}


# --- the cases, run under valgrind: each gets a directory and a mark, and calls mark(work, n) once ---

Mark = Callable[[Callable[[int], object], int], None]


def _open(place: Path, **settings: Any) -> Any:
    import mqfast
    from mqfast.store.base.os_api import OsApi

    os_api = OsApi()
    os_api.fix_clock(FIXED_MS)
    given = {"mappedFileSizeCommitLog": LOG_BYTES, "prefault_window_bytes": 0, "preallocate_files": 0}
    # With an index a put with tags leaves its unit and the entry for its tags to the dispatcher: cases of their own.
    given |= {"indexFileWriteEnable": False, **settings}
    store = mqfast.open(place, os_api=os_api, _start_services=False, **given)
    if not store.log.files:
        # A put writes its queue unit itself once the queue has a file, which only a dispatch makes.
        store.put("Bench", b"first", tags="TagA")
        store.topics()
    return store


def _with_room(place: Path) -> Any:
    """A store whose queue has room for 26,000 units more: each is put with its record, as where the dispatcher keeps
    up.
    """
    store = _open(place)
    store.put_many("Bench", [b"x" * 64] * 26_300, tags="TagA")  # blocks double: these fill 512 KiB, and begin the next
    store.topics()
    return store


def _all_in_place(store: Any) -> None:
    """What was counted must be the path that a put takes when nothing waits for the dispatcher."""
    if store.log.dispatched != store.log.written:
        raise SystemExit(f"expected units up to {store.log.written}, found them up to {store.log.dispatched}")


def _put(place: Path, mark: Mark, size: int) -> None:
    store = _with_room(place)
    put = store.producer("Bench", 0, "TagA").put
    body = b"x" * size

    def work(n: int) -> None:
        for _ in repeat(None, n):
            put(body)

    mark(work, 3000)
    _all_in_place(store)


def _put_encoded(place: Path, mark: Mark, size: int) -> None:
    """The same record as in _put, with the fields that a broker has: at most twice its instructions."""
    store = _with_room(place)
    put = store.engine.put_encoded
    body = b"x" * size
    host, result = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F]), put(b"Bench", 0, body, b"TAGS\x01TagA\x02")
    store.topics()

    def work(n: int) -> None:
        for _ in repeat(None, n):
            put(b"Bench", 0, body, b"TAGS\x01TagA\x02", 0, 0, FIXED_MS, host, host, 0, 0, True, result)

    mark(work, 3000)
    _all_in_place(store)


def _put_keywords(place: Path, mark: Mark) -> None:
    store = _with_room(place)
    put = store.put
    body = b"x" * 1024

    def work(n: int) -> None:
        for _ in repeat(None, n):
            put("Bench", body, tags="TagA")

    mark(work, 3000)
    _all_in_place(store)


def _put_many(place: Path, mark: Mark, size: int) -> None:
    store = _with_room(place)
    bodies = [b"x" * size] * 500

    def work(n: int) -> None:
        for _ in repeat(None, n // 500):
            store.put_many("Bench", bodies)

    mark(work, 5000)
    _all_in_place(store)


def _filled(place: Path, count: int, size: int, keys: bool = False, **settings: Any) -> Any:
    store = _open(place, indexFileWriteEnable=keys, **settings)
    put = store.producer("Bench", 0, "TagA").put
    body = b"x" * size
    for number in range(count):
        put(body, f"key{number}" if keys else None)
    return store


def _get(place: Path, mark: Mark) -> None:
    store = _filled(place, 3200, 256)

    def work(n: int) -> None:
        for batch in range(n // 32):
            for message in store.get("Bench", 0, batch % 100 * 32, 32):
                message.body  # noqa: B018

    mark(work, 3200)


def _get_bodies(place: Path, mark: Mark) -> None:
    store = _filled(place, 3200, 256)

    def work(n: int) -> None:
        for batch in range(n // 32):
            store.get("Bench", 0, batch % 100 * 32, 32).bodies()

    mark(work, 3200)


def _get_records(place: Path, mark: Mark) -> None:
    store = _filled(place, 3200, 1024)

    def work(n: int) -> None:
        for batch in range(n // 32):
            with store.engine.get_records("Bench", 0, batch % 100 * 32, 32) as found:
                assert len(found.buffers) == 1

    mark(work, 3200)


def _crc(place: Path, mark: Mark) -> None:
    from mqfast.store.base.os_api import body_crc

    # Long, so that the call itself counts for nothing; short ones are in put_40.
    body = bytes(range(256)) * 256

    def work(n: int) -> None:
        for _ in repeat(None, n // 64):
            body_crc(body)

    mark(work, 6400)


def _decode(place: Path, mark: Mark) -> None:
    from mqfast.store.record.record import decode_record

    store = _filled(place, 1, 256, keys=True)
    record = store.get("Bench", 0, 1)[0].to_bytes()

    def work(n: int) -> None:
        for _ in repeat(None, n):
            message = decode_record(record)
            message.topic, message.tags, message.keys, message.body  # noqa: B018

    mark(work, 3000)


def _dispatch(place: Path, mark: Mark, keys: bool, index: bool) -> None:
    count = 8000
    store = _open(place, dispatch="background", indexFileWriteEnable=index, **KEY_SETTINGS)
    dispatcher = store.engine.dispatcher
    dispatcher.step()
    put = store.producer("Bench", 0, "TagA").put
    body = b"x" * 64
    ends = [store.log.written]
    for number in range(3 * count):
        put(body, f"key{number:06}" if keys else None)
        ends.append(store.log.written)
    done = [0]

    def work(n: int) -> None:
        done[0] += n
        if dispatcher.step(ends[done[0]]) != n:
            raise SystemExit(f"dispatch: expected {n} records")

    mark(work, count)


def _query(place: Path, mark: Mark) -> None:
    store = _filled(place, 2000, 64, keys=True, **KEY_SETTINGS)
    store.query("Bench", "key0")
    keys = [f"key{number}" for number in range(0, 2000, 2)]

    def work(n: int) -> None:
        for number in range(n):
            store.query("Bench", keys[number % 1000])

    mark(work, 1000)


def _recovery(place: Path, mark: Mark) -> None:
    # Two killed stores: opening the larger one costs more by the walk over what it has more.
    count = 4000
    for factor in (1, 2):
        store = _filled(place / f"live{factor}", count * factor, 1024)
        # with holes, as the blocks are that nobody wrote: recovery looks at what else stands behind the end
        command = ["cp", "-r", "--sparse=always", str(place / f"live{factor}"), str(place / f"killed{factor}")]
        subprocess.run(command, check=True)
        shutil.rmtree(place / f"killed{factor}" / "consumequeue")
        (place / f"killed{factor}" / "checkpoint").unlink(missing_ok=True)
        store.close()
    subprocess.run(["cp", "-r", "--sparse=always", str(place / "killed1"), str(place / "warm")], check=True)
    opened = [_open(place / "warm")]  # modules that only a recovery imports
    # On one processor: how a second thread shares the work is never the same twice.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def work(n: int) -> None:
        store = _open(place / f"killed{n // count}")
        opened.append(store)
        if store.recovery.records != n + 1:
            raise SystemExit(f"recovery: expected {n} records, found {store.recovery.records}")

    mark(work, count)


CASES: dict[str, Callable[[Path, Mark], None]] = {
    "put_40": lambda place, mark: _put(place, mark, 40),
    "put_1k": lambda place, mark: _put(place, mark, 1024),
    "put_encoded_40": lambda place, mark: _put_encoded(place, mark, 40),
    "put_encoded_1k": lambda place, mark: _put_encoded(place, mark, 1024),
    "put_keywords_1k": _put_keywords,
    "put_many_64": lambda place, mark: _put_many(place, mark, 64),
    "put_many_1k": lambda place, mark: _put_many(place, mark, 1024),
    "get_32": _get,
    "get_32_bodies": _get_bodies,
    "get_records_32": _get_records,
    "crc_1k": _crc,
    "decode": _decode,
    "dispatch": lambda place, mark: _dispatch(place, mark, False, False),
    "dispatch_tags": lambda place, mark: _dispatch(place, mark, False, True),
    "dispatch_keys": lambda place, mark: _dispatch(place, mark, True, True),
    "query": _query,
    "recovery": _recovery,
}


def measure(name: str, place: Path, plant: float) -> None:
    """Run one case in this process; ``plant`` does so much of its work a second time (0.05: one in twenty)."""

    def mark(work: Callable[[int], object], n: int) -> None:
        def planted(n: int) -> None:
            work(n)
            extra = int(n * plant)
            if extra:
                work(extra)

        gc.disable()
        if name not in ("recovery", "dispatch", "dispatch_tags", "dispatch_keys"):
            work(n)  # first calls fill caches and free lists
        for label, size in (("once", n), ("twice", 2 * n)):
            _counts.begin_count()
            planted(size)
            _counts.end_count(label)
        print(json.dumps({"n": n}), flush=True)

    CASES[name](place, mark)
    sys.stdout.flush()
    os._exit(0)  # closing stores is not counted and takes time under valgrind


# --- counting ---


def compiler() -> str:
    """Name and major version of the C compiler, as the key has it."""
    text = subprocess.run(
        [*shlex.split(os.environ.get("CC", "cc")), "--version"], capture_output=True, text=True, check=True
    ).stdout
    kind = "clang" if "clang" in text else "gcc"
    found = re.search(r"(\d+)\.\d+", text.splitlines()[0])
    return f"{kind}-{found[1] if found else '?'}"


def parse(text: str) -> Count:
    """Sum one callgrind file: self cost, and that of this tree's extensions."""
    return _counts.parse(text, str(ROOT / "mqfast"))


def count(name: str, plant: float = 0.0) -> Count:
    """Instructions of one piece of work of a case."""
    with tempfile.TemporaryDirectory(prefix="mqfast-counts-", dir=os.environ.get("MQFAST_BENCH_DIR")) as work:
        place = Path(work)
        command = [sys.executable, "-s", str(Path(__file__).resolve()), f"--case={name}", f"--place={place / 'store'}"]
        command.append(f"--plant={plant}")
        try:
            # Not the .pyc files of the tree: how these share constants depends on the process that wrote them, and
            # changes "all" by up to 5 %.
            environment = {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(place / "pycache")}
            return _counts.count(command, None, str(ROOT / "mqfast"), place, environment)
        except UsageError as error:
            raise SystemExit(f"{name}: {error}") from None


def key() -> tuple[str, str]:
    """What counts depend on (the key of a baseline), and the very build of Python."""
    program = (
        "import mqfast, sys, json; from mqfast.store.base.os_api import crc32_variant; "
        "print(json.dumps([crc32_variant(), [m for m in sys.modules if m.startswith('_cython_')][0]]))"
    )
    done = subprocess.run(
        ["valgrind", "--tool=none", "-q", sys.executable, "-s", "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"valgrind ended with {done.returncode}\n{done.stderr}")
    variant, cython = json.loads(done.stdout)
    minor = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
    cython = "cython-" + ".".join(cython.removeprefix("_cython_").split("_")[:2])
    return f"{minor} {cython} {compiler()} {platform.machine()} crc-{variant}", " ".join(sys.version.split())


class Verdict(NamedTuple):
    """One case beside its baseline."""

    name: str
    now: Count
    base: Count | None
    failed: bool


def compare(now: dict[str, Count], base: dict[str, Count], same_python: bool) -> list[Verdict]:
    """Judge: more than LIMIT above the baseline fails; all instructions count only on the very build of Python, and
    only above WHOLE_LIMIT.
    """
    rows = []
    for name, found in now.items():
        before = base.get(name)
        failed = before is not None and (
            found.ours > before.ours * (1 + LIMIT) or (same_python and found.whole > before.whole * (1 + WHOLE_LIMIT))
        )
        rows.append(Verdict(name, found, before, failed))
    return rows


def table(rows: list[Verdict], same_python: bool) -> str:
    """The rows as text."""

    def part(now: float, before: float | None) -> str:
        return f"{now:9.1f} {'no baseline' if before is None else f'{100 * (now / before - 1):+10.2f}%':>11}"

    lines = [f"{'instructions of one':20} {'mqfast':>9} {'':11} {'all':>9}"]
    for row in rows:
        base = row.base
        ours = part(row.now.ours, base.ours if base else None)
        whole = part(row.now.whole, base.whole if base and same_python else None)
        lines.append(f"{row.name:20} {ours} {whole}  {'SLOWER' if row.failed else ''}".rstrip())
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Count and compare; returns 1 when a case is slower."""
    parser = argparse.ArgumentParser(description="Count instructions of the hot paths and compare with the baseline.")
    parser.add_argument("names", nargs="*", metavar="CASE", help=f"only these: {' '.join(CASES)}")
    parser.add_argument("--write", action="store_true", help="make these counts the baseline")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--plant", type=float, default=0.0, help="do so much of the work twice, to see the guard fail")
    for hidden in ("--case", "--place"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.case:
        measure(arguments.case, Path(arguments.place), arguments.plant)
    unknown = [name for name in arguments.names if name not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    if not _counts.is_there():
        print(_counts.INSTALL, file=sys.stderr)
        return 2
    name, python = key()
    names = arguments.names or list(CASES)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        counts = pool.map(lambda case: count(case, arguments.plant), names)
        now = dict(zip(names, counts, strict=True))
    everything = json.loads(arguments.baseline.read_text()) if arguments.baseline.exists() else {}
    entry = everything.get(name, {})
    base = {case: Count(*numbers) for case, numbers in entry.get("cases", {}).items()}
    same = entry.get("python") == python
    rows = compare(now, base, same)
    print(f"{name}\n{table(rows, same)}")
    if arguments.write:
        kept = entry.get("cases", {}) if same and arguments.names else {}
        cases = {**kept, **{case: [round(number, 1) for number in found] for case, found in now.items()}}
        everything[name] = {"python": python, "cases": cases}
        arguments.baseline.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")
        print(f"written: {arguments.baseline}")
        return 0
    if not base:
        print(f"no baseline for: {name} (make perf-baseline writes one)")
    elif not same:
        print("another build of Python than the baseline's: only mqfast's own instructions are compared")
    slower = [row.name for row in rows if row.failed]
    if slower:
        print(f"slower by more than {LIMIT:.0%}: {', '.join(slower)}")
        print(f"The limit of all instructions is {WHOLE_LIMIT:.0%}.")
        print("If it is meant: make perf-baseline, and the reason in the commit message.")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())

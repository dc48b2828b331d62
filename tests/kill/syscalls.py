"""Kills a small writer at every one of its system calls: `python tests/kill/syscalls.py [step]` (every step-th, default
1).

Room: tests/kill. Where runs.py kills at random moments, this visits all of them between the open and the end of the
close: the writer is traced (at_syscall.c), counted once, then run again for each number and killed when it enters that
call. Service threads come in between in another order every time, so a number is not always the same place; that only
adds places. It must never judge: runs.judge does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from runs import Killed, Lost, Plan, fork_child, judge, sort, workplace, write

SMALL = {
    "mappedFileSizeCommitLog": 32 << 10,
    "mappedFileSizeConsumeQueue": 20 * 60,
    "maxHashSlotNum": 50,
    "maxIndexNum": 6,
    "preallocate_files": 1,
    "prefault_window_bytes": 8 << 10,
}
SYNC = {"flushDiskType": "SYNC_FLUSH"}
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 2}
WORKLOADS = {
    "mmap async inline put": ("put", SMALL | {"dispatch": "inline"}),
    "mmap sync background batch": ("put_batch", SMALL | SYNC),
    "mmap async background keys": ("producer", SMALL),
    "pool async keys": ("producer", SMALL | POOL),
    "pool sync properties": ("properties", SMALL | SYNC | POOL),
}
NOT_PERMITTED = 77
PR_SET_PTRACER, ANYBODY = 0x59616D61, -1


class CannotTrace(Exception):
    """This machine does not let one process trace another."""


def build(directory: Path) -> Path:
    """Compile the tracer. Raises: CannotTrace without Linux or a compiler."""
    if not sys.platform.startswith("linux"):
        raise CannotTrace("ptrace as it is used here is Linux only")
    program = directory / "at_syscall"
    compiler = shutil.which(os.environ.get("CC", "cc")) or "cc"
    source = Path(__file__).with_name("at_syscall.c")
    try:
        subprocess.run([compiler, "-std=gnu11", "-O1", "-o", str(program), str(source)], check=True)
    except FileNotFoundError:
        raise CannotTrace(f"no C compiler {compiler}") from None
    return program


def _traced(plan: Plan, path: Path, go: int, acks: int) -> None:
    # where a process may only trace its children, let the tracer in
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(ANYBODY & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)
    os.read(go, 1)
    os.getsid(0)
    write(plan, path, acks)


def trace(tracer: Path, plan: Plan, path: Path, number: int) -> tuple[int, Killed]:
    """Run the writer and kill it at that call (0: never). Returns: calls counted, and what was acknowledged."""
    go_read, go_write = os.pipe()
    read_end, write_end = os.pipe()
    pid = fork_child(lambda: _traced(plan, path, go_read, write_end), go_write, read_end)
    os.close(go_read)
    os.close(write_end)
    with subprocess.Popen([str(tracer), str(pid), str(number)], stdout=subprocess.PIPE, text=True) as helper:
        assert helper.stdout is not None
        ready = helper.stdout.readline().strip()
        os.write(go_write, b"g")
        os.close(go_write)
        raw = bytearray()
        with contextlib.closing(os.fdopen(read_end, "rb")) as pipe:
            raw += pipe.read()
        counted = helper.stdout.read().strip()
    _, status = os.waitpid(pid, 0)
    if ready != "ready" or helper.returncode == NOT_PERMITTED:
        raise CannotTrace("ptrace is not permitted here")
    if status != (9 if number else 0) and status != 0:
        raise AssertionError(f"the writer ended with status {status}")
    return int(counted), Killed(plan, sort(plan, bytes(raw)), True, "closed" if status == 0 else "killed")


def run(tracer: Path, name: str, step: int, first: int = 1) -> Counter[str]:
    """Kill one workload at every step-th call from the first on. Raises: Lost, CannotTrace."""
    way, settings = WORKLOADS[name]
    plan = Plan(
        seed=7,
        generation=0,
        way=way,
        threads=1,
        sync="flushDiskType" in settings,
        pool="transientStorePoolEnable" in settings,
        settings=settings | {"messageIndexEnable": True},
        body_bytes=5000,
        kill_when="syscall",
        kill_after=0,
        messages=12,
    )
    counts: Counter[str] = Counter()
    with workplace(memory=True) as path:
        calls, _ = trace(tracer, plan, path / "store", 0)
    counts["calls"] = calls
    for number in range(first, calls + 1, step):
        with workplace(memory=True) as path:
            _, killed = trace(tracer, plan, path / "store", number)
            if killed.ended == "closed":
                continue  # fewer calls this time
            try:
                counts += judge(path / "store", plan.seed, [killed])
            except Exception as error:
                raise Lost(f"workload {name!r} killed at system call {number} of {calls}: {error}") from error
            counts["kills"] += 1
    return counts


def main() -> None:
    """Argument: step."""
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    began = time.monotonic()
    total: Counter[str] = Counter()
    with workplace(memory=True) as path:
        try:
            tracer = build(path)
            for name in WORKLOADS:
                counts = run(tracer, name, step)
                total += counts
                print(f"{name}: {counts['calls']} system calls, killed at {counts['kills']}", flush=True)
        except CannotTrace as reason:
            print(f"crash-kill: system calls are not visited: {reason}")
            return
    print(
        f"crash-kill: {total['kills']} kills at system calls of {len(WORKLOADS)} workloads,"
        f" {total['acknowledged']} acknowledged messages, nothing lost that was promised,"
        f" {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()

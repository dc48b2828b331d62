"""A processor for a paced loop alone: of those this process may use, the one that the disk interrupts least.

A disk with one queue interrupts one processor, 200 times a second for some 14 us each beside 200,000 puts; a thread
that must not be late is kept on another, and the others away from it, as whoever embeds a store where that matters
does. So is what the kernel may run anywhere, where root asks for it: here a thread of it that looks at the use of
memory held a processor for 1 to 4 ms twice a second. On systems other than Linux nothing is moved. It must never leave
a thread moved behind a turn, or the kernel's behind the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

_SYNCS = 100
_KERNEL = 2  # kthreadd, which starts all threads of the kernel
_WORKQUEUES = Path("/sys/devices/virtual/workqueue/cpumask")
_CONNECTIONS = Path("/proc/sys/net/netfilter/nf_conntrack_count")
_BUCKETS = Path("/sys/module/nf_conntrack/parameters/hashsize")
_FEW_CONNECTIONS, _FEW_BUCKETS = 1000, 4096


def _stay(number: int, frame: FrameType | None) -> None:
    """For a second signal, which must not end the work of the first; where one is ignored, Python complains of one that
    came just before.
    """


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, _stay)
    sys.exit(128 + number)


def end_in_order(leave: Callable[[int, FrameType | None], object] = _leave) -> None:
    """Have a signal that ends this process leave through its blocks, which put back what they changed on the machine
    (here, and in host_memory.py) and remove stores. To be called by the main thread before the first of them.

    Args: leave: takes the signal and raises what the caller's blocks are left with.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup's word stands
            signal.signal(number, leave)


def interrupts(text: str) -> dict[int, int]:
    """How often devices interrupted each processor so far, by the text of /proc/interrupts."""
    lines = text.splitlines()
    numbers = [int(name.removeprefix("CPU")) for name in lines[0].split()] if lines else []
    found = dict.fromkeys(numbers, 0)
    for line in lines[1:]:
        name, *words = line.split()
        if name.rstrip(":").isdigit():  # the others are no devices: timers, calls between processors
            for number, word in zip(numbers, words, strict=False):
                found[number] += int(word)
    return found


def quietest(place: Path) -> int | None:
    """The processor with fewest interrupts while a file in this directory is synced; None: there is no choice."""
    try:
        allowed = sorted(os.sched_getaffinity(0))
        source = Path("/proc/interrupts")
        before = interrupts(source.read_text())
    except (AttributeError, OSError):
        return None
    if len(allowed) < 2:
        return None
    with tempfile.TemporaryFile(dir=place) as file:
        for _ in range(_SYNCS):
            os.write(file.fileno(), bytes(4096))
            os.fsync(file.fileno())
    after = interrupts(source.read_text())
    return min(allowed, key=lambda number: after.get(number, 0) - before.get(number, 0))


@contextlib.contextmanager
def _away_from(processor: int, threads: Iterable[int]) -> Iterator[None]:
    """Keep the threads that may be moved off the processor while the block runs."""
    moved = []
    for thread in threads:
        with contextlib.suppress(OSError):  # it ended, or stays where it is
            before = os.sched_getaffinity(thread)
            if processor in before and len(before) > 1:
                os.sched_setaffinity(thread, before - {processor})
                moved.append((thread, before))
    try:
        yield
    finally:
        for thread, before in moved:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, before)


@contextlib.contextmanager
def alone_on(processor: int | None, thread: int) -> Iterator[None]:
    """Keep a thread, by its number of Linux, on one processor while the block runs, and the others of its process off
    it. None: all run anywhere. What the thread starts meanwhile is kept with it until it moves itself.
    """
    if processor is None:
        yield
        return
    others = [int(task.name) for task in Path(f"/proc/{thread}/task").iterdir() if task.name != str(thread)]
    before = os.sched_getaffinity(thread)
    with _away_from(processor, others):
        os.sched_setaffinity(thread, {processor})
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # it ended
                os.sched_setaffinity(thread, before)


def _of_kernel() -> Iterator[int]:
    """Threads of the kernel."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):  # it ended
                if int((path / "stat").read_text().rpartition(")")[2].split()[1]) == _KERNEL:
                    yield int(path.name)


@contextlib.contextmanager
def _set_meanwhile(setting: Path, other: Callable[[str], str]) -> Iterator[None]:
    """Have a setting of the kernel be another one while the block runs, where it is there and root asks for it.

    Args: other: makes it from the present one; an empty text leaves it as it is.
    """
    before = ""
    with contextlib.suppress(OSError, ValueError):  # not root, not Linux
        found = setting.read_text().strip()
        wanted = other(found)
        if wanted:
            setting.write_text(wanted)
            before = found
    try:
        yield
    finally:
        if before:
            with contextlib.suppress(OSError):
                setting.write_text(before)


def queued_work_away_from(processor: int, mask: Path = _WORKQUEUES) -> contextlib.AbstractContextManager[None]:
    """Keep the work that the kernel queues for any processor off this one meanwhile: its workers take no other word.
    After each write of a disk some of them turn blocks that were only allocated into written ones, 2 ms at a time.
    """

    def others(found: str) -> str:
        rest = int(found.replace(",", ""), 16) & ~(1 << processor)
        words = [rest >> 32 * number & 0xFFFFFFFF for number in range(found.count(",") + 1)]
        return ",".join(f"{word:08x}" for word in reversed(words)) if rest else ""

    return _set_meanwhile(mask, others)


def short_walks_of_connections(
    connections: Path = _CONNECTIONS, buckets: Path = _BUCKETS
) -> contextlib.AbstractContextManager[None]:
    """Have the firewall's table of connections small meanwhile, if it is as good as empty. Once a minute the kernel
    walks all of it on the processor where it did so first, which nothing moves: of 262,144 empty buckets for 6.5 ms.
    """

    def fewer(found: str) -> str:
        empty = int(connections.read_text()) < _FEW_CONNECTIONS
        return str(_FEW_BUCKETS) if empty and int(found) > _FEW_BUCKETS else ""

    return _set_meanwhile(buckets, fewer)


@contextlib.contextmanager
def without_kernel(processor: int | None) -> Iterator[None]:
    """Keep the kernel's threads that may run anywhere off the processor meanwhile, and what must run there short, where
    root asks for it.
    """
    if processor is None:
        yield
        return
    with queued_work_away_from(processor), _away_from(processor, _of_kernel()), short_walks_of_connections():
        yield

"""One side of a comparison: a process that does pieces of work on request, and measures their time.

The measured interpreter runs this file as a script, with any version of mqfast. So only public names of mqfast are
imported, and other modules import only names and marks from here.

    PYTHON worker.py PLACE [FUNCTION]        answers lines of stdin (a JSON list of case and count) with seconds
    PYTHON worker.py --count CASE COUNT PLACE [FUNCTION]       under callgrind: does the work once and twice, marked
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import mmap
import os
import platform
import sys
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any, Final

__all__ = ["CASES", "FUNCTION", "about", "begin_count", "can_count", "end_count"]

FUNCTION: Final = "function"
"""The name of the user's own function as a case."""

CASES: Final = {
    "put 40 B": 20_000,
    "put 1 KiB": 10_000,
    "put_many 64 B": 50_000,
    "put_many 1 KiB": 20_000,
    "get 32": 32_000,
    "query": 2_000,
}
"""Cases, and the pieces of work of a round."""

_Work = Callable[[int], object]

# --- marks: from where to count, and where the counts are written down ---

# The instructions by which a program speaks to valgrind, as a function of one argument; they do nothing outside of it.
# Written down here so that neither a compiler nor valgrind's headers are needed where it runs.
_REQUEST: Final = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
_CALLGRIND: Final = 0x43540000
_ZERO, _DUMP_AT, _START, _STOP = 1, 3, 4, 5
_function: list[Any] = []
_counting: list[bool] = []


def can_count() -> bool:
    """Return whether the marks are known for this kind of processor."""
    return platform.machine() == "x86_64"


def _tell(request: int, argument: int = 0) -> None:
    if not _function:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(_REQUEST)
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        _function.extend((ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(address), code))
    words = (ctypes.c_ulong * 6)(_CALLGRIND + request, argument)
    _function[0](ctypes.addressof(words))


def begin_count() -> None:
    """Start counting from zero, under callgrind."""
    _tell(_START)
    _tell(_ZERO)


def end_count(label: str) -> None:
    """Write down the counts and stop counting, under callgrind."""
    text = ctypes.create_string_buffer(label.encode("ascii"))
    _tell(_DUMP_AT, ctypes.addressof(text))
    _tell(_STOP)


# --- work ---


def _open(place: str, name: str) -> Any:
    import mqfast

    settings: dict[str, Any] = {"mappedFileSizeCommitLog": 128 << 20, "maxHashSlotNum": 50_000, "maxIndexNum": 200_000}
    settings["prefault_window_bytes"] = 16 << 20  # a broker's; older versions have no profile to name
    if _counting:
        # Work of other threads would be counted as well, and differs each time.
        with contextlib.suppress(mqfast.errors.UsageError):
            return mqfast.open(os.path.join(place, name), _start_services=False, **settings)
    return mqfast.open(os.path.join(place, name), **settings)


def _put(place: str, size: int) -> _Work:
    put, body = _open(place, f"put{size}").producer("Bench", 0, "TagA").put, b"x" * size

    def work(count: int) -> None:
        for _ in repeat(None, count):
            put(body)

    return work


def _put_many(place: str, size: int) -> _Work:
    store, bodies = _open(place, f"many{size}"), [b"x" * size] * 1000

    def work(count: int) -> None:
        for _ in repeat(None, count // 1000):
            store.put_many("Bench", bodies)

    return work


def _get(place: str) -> _Work:
    store = _open(place, "get")
    for _ in range(32):
        store.put_many("Bench", [b"x" * 256] * 1000)

    def work(count: int) -> None:
        for offset in range(0, count, 32):
            for _ in store.get("Bench", 0, offset % 32_000, 32):
                pass

    return work


def _query(place: str) -> _Work:
    store = _open(place, "query")
    put = store.producer("Keyed").put
    for number in range(5000):
        put(b"x" * 256, f"key{number}")
    keys = [f"key{number}" for number in range(0, 5000, 5)]
    store.query("Keyed", "key0")

    def work(count: int) -> None:
        for number in range(count):
            store.query("Keyed", keys[number % 1000])

    return work


def _own(name: str) -> _Work:
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    function: Any = importlib.import_module(module)
    for part in attribute.split("."):
        function = getattr(function, part)
    call: Callable[[], object] = function

    def work(count: int) -> None:
        for _ in repeat(None, count):
            call()

    return work


def _work_of(case: str, place: str, function: str | None) -> _Work:
    if case == FUNCTION:
        return _own(str(function))
    kind, _, size = case.partition(" ")
    if kind in ("put", "put_many"):
        number, unit = size.split()
        return {"put": _put, "put_many": _put_many}[kind](place, int(number) << (10 if unit == "KiB" else 0))
    return {"get": _get, "query": _query}[kind](place)


def about() -> dict[str, str]:
    """Return versions and paths of this side."""
    import mqfast

    return {
        "mqfast": mqfast.__version__,
        "package": os.path.dirname(os.path.abspath(mqfast.__file__)),
        "python": " ".join(sys.version.split()),
        "executable": sys.executable,
    }


def _serve(place: str, function: str | None) -> None:
    known: dict[str, _Work] = {}
    print(json.dumps(about()), flush=True)
    for line in sys.stdin:
        case, count = json.loads(line)
        if case not in known:
            known[case] = _work_of(case, place, function)
            known[case](max(1, count // 20))
            gc.collect()
            gc.disable()
        started_s = time.perf_counter()
        known[case](count)
        print(time.perf_counter() - started_s, flush=True)


def _count(case: str, count: int, place: str, function: str | None) -> None:
    _counting.append(True)
    work = _work_of(case, place, function)
    gc.disable()
    work(count)  # first calls fill caches and free lists
    for label, size in (("once", count), ("twice", 2 * count)):
        begin_count()
        work(size)
        end_count(label)
    sys.stdout.flush()
    os._exit(0)  # closing stores is not counted and takes time under valgrind


def _main(words: list[str]) -> None:
    if words[0] == "--count":
        case, count, place, *rest = words[1:]
        _count(case, int(count), place, rest[0] if rest else None)
    else:
        _serve(words[0], words[1] if len(words) > 1 else None)


if __name__ == "__main__":
    sys.path = [
        path for path in sys.path if os.path.realpath(path or ".") != os.path.dirname(os.path.realpath(__file__))
    ]
    _main(sys.argv[1:])

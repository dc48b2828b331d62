"""Coverage-guided fuzzing: ``python -m tests.fuzz.fuzz --seconds 60 [--target record]``.

Run by ``run.sh`` on a build with AddressSanitizer, UndefinedBehaviorSanitizer and gcc's trace-pc, whose hook
(``coverage.c``) counts edges; an input that reaches a new one joins the corpus. Without that build the kinds of error
are all there is to go by. Each target runs in a child; the input of a child that dies is kept under ``crash-``.

Room: tests. It must never swallow an exception that is not one of ``mqfast.errors``.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import logging
import mmap
import os
import random
import shutil
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Final

from .targets import OWN_WAYS, TARGETS, end, run

CORPUS: Final = Path(__file__).resolve().parent / "corpus"
_MAP: Final = 65536
_CLASSES: Final = bytes(1 << n.bit_length() - 1 if n else 0 for n in range(256))
_MOST_BYTES: Final = 8192
_INTERESTING: Final = (0, 1, -1, 20, 91, 127, 255, 32767, -32768, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))


def _hits() -> ctypes.Array[ctypes.c_uint8] | None:
    try:
        return (ctypes.c_uint8 * _MAP).in_dll(ctypes.CDLL(None), "mq_coverage")
    except ValueError:
        return None


def mutate(rng: random.Random, pool: list[bytes], target: str) -> bytes:
    """A new input from those that are there."""
    if target in OWN_WAYS and rng.random() < 0.5:
        return OWN_WAYS[target](rng, pool)[:_MOST_BYTES]
    data = bytearray(rng.choice(pool))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        kind = rng.randrange(7)
        at = rng.randrange(len(data) + 1)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 2:
            size = rng.choice((1, 2, 4, 8))
            data[at : at + size] = (rng.choice(_INTERESTING) % (1 << 8 * size)).to_bytes(size, "big")
        elif kind == 3:
            del data[at : at + rng.choice((1, 4, 20, 100))]
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 20)))
        elif kind == 5:
            other = rng.choice(pool)
            start = rng.randrange(len(other) + 1)
            piece = other[start : start + rng.choice((4, 20, 46, 200))]
            data[at : at + rng.choice((0, len(piece)))] = piece
        elif len(data) > 8:
            start = rng.randrange(len(data))
            data[at : at + 20] = data[start : start + 20]
    return bytes(data[:_MOST_BYTES])


def _child(target: str, seconds: float, seed: int, shared: mmap.mmap, keep: Path) -> None:
    logging.disable(logging.CRITICAL)
    rng = random.Random(seed)
    hits = _hits()
    pool = [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))] or [b""]
    kinds: set[str] = set()
    seen = 0
    root = tempfile.mkdtemp(prefix="mqfast-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    until = time.monotonic() + seconds
    count, first = 0, list(pool)
    while time.monotonic() < until:
        data = first.pop() if first else mutate(rng, pool, target)
        shared[:16] = struct.pack("<qq", count, len(data))
        shared[16 : 16 + len(data)] = data
        if hits is not None:
            ctypes.memset(hits, 0, _MAP)
        kind = run(target, data, root)
        count += 1
        edges = 0
        if hits is not None:
            # How often an edge ran counts in powers of two: one bit of its cell each.
            edges = int.from_bytes(bytes(hits).translate(_CLASSES), "little")
        if kind not in kinds or edges & ~seen:
            kinds.add(kind)
            seen |= edges
            pool.append(data)
            if len(data) <= 1024 or target == "recovery":
                (keep / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)
    end()
    shared[:8] = struct.pack("<q", count)
    shutil.rmtree(root, ignore_errors=True)


def fuzz(target: str, seconds: float, seed: int, keep: Path) -> tuple[int, list[str]]:
    """Fuzz one target. Returns: executions, and what was found."""
    found: list[str] = []
    total = 0
    keep.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and len(found) < 10:
        shared = mmap.mmap(-1, 16 + _MOST_BYTES)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _child(target, left, seed, shared, keep)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        deadline = until + 30
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, 9)
            time.sleep(0.05)
        count, size = struct.unpack("<qq", shared[:16])
        total += count
        seed += 1
        if time.monotonic() < until - 0.1:
            data = shared[16 : 16 + size]
            path = keep.parent / f"crash-{target}-{hashlib.sha1(data).hexdigest()[:12]}"
            path.write_bytes(data)
            found.append(str(path))
    return total, found


def main() -> int:
    """Returns: 1 when anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--target", choices=sorted(TARGETS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz/corpus"), help="where new inputs go")
    parser.add_argument("--input", type=Path, help="repeat one input of --target, in this process")
    options = parser.parse_args()
    if options.input:
        print(repr(run(options.target, options.input.read_bytes(), tempfile.mkdtemp())))
        return 0
    names = [options.target] if options.target else list(TARGETS)
    guided = "guided by coverage" if _hits() is not None else "without coverage"
    counts, found = {}, []
    for name in names:
        counts[name], more = fuzz(name, options.seconds / len(names), options.seed, options.keep / name)
        found += more
        print(f"fuzz: {name}: {counts[name]} executions, {len(more)} findings", flush=True)
    for path in found:
        print("fuzz: found", path)
    print(f"fuzz: {guided}, seed {options.seed}: {sum(counts.values())} executions", counts, f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

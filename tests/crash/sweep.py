"""Crash after every call of every workload, and check every image: the long form is ``make crash-images``.

Room: tests. It must never count an image that was not checked. Reproduce a failure with the command that it prints.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from harness import Bad, Run, check_image  # noqa: E402  (its folder was just made importable)
from workloads import WORKLOADS  # noqa: E402

from mqfast.sim.simulated_os import scratch_root  # noqa: E402

__all__ = ["Stretch", "check_stretch", "count_calls", "plan"]

_IMAGES_AT_ONCE: Final = 300


class Stretch(NamedTuple):
    """Calls [first, last) of one workload, with so many images before each."""

    workload: str
    first: int
    last: int
    per_call: int
    seed: int


class Outcome(NamedTuple):
    """What came of a stretch."""

    stretch: Stretch
    images: int
    calls: int
    bad: list[str]
    seconds: float


def count_calls(name: str) -> tuple[int, int]:
    """Numbers of the first and behind the last call at which a workload may crash."""
    logging.disable()
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory(prefix="mqfast-crash-", dir=scratch_root()) as base:
        run = Run(workload, base)
        try:
            if workload.before is not None:
                workload.before(run)
            first = run.sim.calls + 1
            workload.steps(run)
            return first, run.sim.calls + 2
        finally:
            run.end()


def check_stretch(stretch: Stretch) -> Outcome:
    """Run the workload, take its images, check each."""
    began = time.perf_counter()
    logging.disable()  # what recovery says of thousands of images
    workload = WORKLOADS[stretch.workload]
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mqfast-crash-", dir=scratch_root()) as base:
        run = Run(workload, base)
        target = os.path.join(base, "images")
        os.mkdir(target)
        try:
            if workload.before is not None:
                workload.before(run)
            run.sim.images(target, first=stretch.first, last=stretch.last, per_call=stretch.per_call, seed=stretch.seed)
            workload.steps(run)
            run.sim.take()
            images, notes, sent = run.sim.taken(), list(run.notes), list(run.sent)
        finally:
            run.end()
        for number, image in enumerate(images):
            root = os.path.join(target, str(number))
            try:
                check_image(root, image, notes, sent, workload)
            except Exception as error:
                kind = "" if isinstance(error, Bad) else f"{type(error).__name__}: "
                bad.append(
                    f"{stretch.workload} call {image.call} image {number} mode {image.mode}: {kind}{error}\n"
                    f"    python tests/crash/sweep.py --workload {stretch.workload} --first {image.call}"
                    f" --last {image.call + 1} --per-call {stretch.per_call} --seed {stretch.seed}"
                )
            shutil.rmtree(root)
    return Outcome(stretch, len(images), len({image.call for image in images}), bad, time.perf_counter() - began)


def plan(per_call: int, seed: int, names: list[str] | None = None, every: int = 1) -> Iterator[Stretch]:
    """Stretches of all calls of all workloads; ``every`` n-th call only, for the short form."""
    for name in names or WORKLOADS:
        first, last = count_calls(name)
        step = max(1, _IMAGES_AT_ONCE // per_call) if every == 1 else 1
        for at in range(first, last, step * every):
            yield Stretch(name, at, min(last, at + step), per_call, seed)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000, help="at least so many, the seeds go up until then")
    parser.add_argument("--seconds", type=float, default=580, help="stop after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--per-call", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, help="one stretch only")
    parser.add_argument("--last", type=int)
    a = parser.parse_args()
    if a.first is not None:
        names = a.workload or []
        outcome = check_stretch(Stretch(names[0], a.first, a.last or a.first + 1, a.per_call, a.seed))
        print(*outcome.bad, sep="\n")
        print(f"{outcome.images} images, {len(outcome.bad)} bad")
        return 1 if outcome.bad else 0
    began = time.perf_counter()
    images = bad = 0
    calls: dict[str, set[int]] = {}
    times: Counter[str] = Counter()
    seed = a.seed
    # Not multiprocessing.Pool, which waits for ever for the result of a worker that was ended by a signal.
    with concurrent.futures.ProcessPoolExecutor(a.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        while images < a.images and time.perf_counter() - began < a.seconds:
            given = [pool.submit(check_stretch, stretch) for stretch in plan(a.per_call, seed, a.workload)]
            for done in concurrent.futures.as_completed(given):
                outcome = done.result()
                if images // 10_000 != (images + outcome.images) // 10_000:
                    print(f"{images + outcome.images} images, {time.perf_counter() - began:.0f} s", flush=True)
                images += outcome.images
                bad += len(outcome.bad)
                calls.setdefault(outcome.stretch.workload, set()).update(
                    range(outcome.stretch.first, outcome.stretch.last)
                )
                times[outcome.stretch.workload] += outcome.seconds  # type: ignore[assignment]
                for text in outcome.bad[:40]:
                    print(text, flush=True)
                if time.perf_counter() - began > a.seconds:
                    break
            seed += 1
        pool.shutdown(cancel_futures=True)
    points = sum(map(len, calls.values()))
    print(
        f"crash: {images} images of {len(calls)} workloads, {points} crash points, seeds {a.seed} to {seed - 1}, "
        f"{bad} bad, {time.perf_counter() - began:.0f} s"
    )
    return 1 if bad or (images < a.images and not a.workload) else 0


if __name__ == "__main__":
    sys.exit(main())

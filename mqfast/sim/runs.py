"""Runs of a scenario by seeds: explore, replay, and the shrinker of a failure.

A run is determined by scenario, seed and plan of faults. Nothing of the real time or of the machine enters a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from mqfast.sim.cluster import Cluster
from mqfast.sim.faults import DEFAULT_KINDS, Fault, draw_plan
from mqfast.sim.history import Broken, History
from mqfast.sim.loop import Stuck
from mqfast.sim.outside import replaced
from mqfast.sim.simulated_os import scratch_root
from mqfast.sim.threads import in_process

__all__ = ["Failure", "Outcome", "Scenario", "SimulationFailed", "explore", "replay", "run_seed", "shrink"]

Scenario: TypeAlias = Callable[[Cluster], Awaitable[object]]
_DEADLINE_S: Final = 7200.0


@dataclass(frozen=True)
class Failure:
    """A broken promise.

    Attributes: seed; invariant: its name; text; plan: the faults of the run; events: the last events of each machine.
    """

    seed: int
    invariant: str
    text: str
    plan: tuple[Fault, ...]
    events: str

    def __str__(self) -> str:
        faults = "\n".join(f"   {fault}" for fault in self.plan) or "   none"
        return f"seed {self.seed}: {self.text}\n-- faults\n{faults}\n{self.events}"


@dataclass(frozen=True)
class Outcome:
    """A run.

    Attributes: hash: of all events; virtual_s: its virtual time; turns: callbacks; failure: None for a good run.
    """

    seed: int
    hash: int
    events: int
    virtual_s: float
    turns: int
    failure: Failure | None
    trace: tuple[str, ...] = ()


class SimulationFailed(AssertionError):
    """A seed of ``explore`` broke a promise. Attributes: failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def run_seed(
    scenario: Scenario,
    seed: int,
    *,
    kinds: Iterable[str] = DEFAULT_KINDS,
    plan: Iterable[Fault] | None = None,
    until: float | None = None,
    trace: bool = False,
) -> Outcome:
    """Run a scenario once.

    Args: kinds: of faults; plan: the faults instead of those of the seed; until: virtual time at which the debugger
    starts; trace: keep all events.
    """
    faults = list(draw_plan(seed, kinds) if plan is None else plan)

    def work() -> Outcome:
        outcome = _run(scenario, seed, faults, until, trace)
        # Not in the main thread, where a coroutine that ends here may make an event loop, whose descriptors stay open.
        while gc.collect():
            pass  # an object whose finalizer brings others back is freed by a later pass
        return outcome

    with _quiet():
        return _beside_main(work)


def _beside_main(work: Callable[[], Outcome]) -> Outcome:
    """Run work in a thread: in the main thread a store takes the call of a second simulated thread for that of a signal
    handler.

    Raises: as ``work``.
    """
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []

    def main() -> None:
        try:
            outcomes.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=main, name="mqfast-sim", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcomes[0]


def _run(scenario: Scenario, seed: int, faults: list[Fault], until: float | None, trace: bool) -> Outcome:
    base = Path(tempfile.mkdtemp(prefix="mqfast-sim-", dir=scratch_root()))
    history = History(str(base))
    events = history.trace() if trace else []
    with _logged(history):
        cluster = Cluster(seed, base, history, faults)
        cluster.loop.deadline_s = _DEADLINE_S
        failure: tuple[str, str] | None = None
        try:
            with replaced(cluster.loop, cluster.product_rng):
                try:
                    in_process(cluster.scenario, cluster.loop.run_until_complete, _main(cluster, scenario, until))
                except Broken as broken:
                    failure = broken.name, str(broken)
                except Stuck as stuck:
                    failure = "the scenario ends", str(stuck)
                except Exception as error:
                    failure = "the scenario", f"{type(error).__name__}: {error}"
                last = history.last()
                in_process(cluster.scenario, cluster.close)
        finally:
            shutil.rmtree(base, ignore_errors=True)
    return Outcome(
        seed,
        history.hash,
        history.events,
        cluster.loop.now_s,
        cluster.loop.turns,
        None if failure is None else Failure(seed, *failure, tuple(faults), last),
        tuple(events),
    )


async def _main(cluster: Cluster, scenario: Scenario, until: float | None) -> None:
    loop = cluster.loop
    if until is not None:
        loop.call_at(until, breakpoint)

    async def run() -> None:
        await scenario(cluster)

    cluster.main = task = loop.create_task(run())
    try:
        await task
    except asyncio.CancelledError:
        if cluster.invariants.broken is None:
            raise
    if cluster.invariants.broken is not None:
        raise cluster.invariants.broken


@contextlib.contextmanager
def _logged(history: History) -> Iterator[None]:
    """Collect the product's log."""
    logger = logging.getLogger("mqfast")
    before = logger.level, logger.propagate, logger.handlers[:]
    logger.handlers[:], logger.propagate = [history], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.propagate, logger.handlers[:] = before[1], before[2]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep finalizers out of the run, and their complaints out of the terminal: code crashed in the middle."""
    asyncio_logger = logging.getLogger("asyncio")
    asyncio_level, hooks = asyncio_logger.level, (sys.unraisablehook, sys.excepthook)
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    asyncio_logger.setLevel(logging.CRITICAL + 1)
    sys.unraisablehook = lambda _: None
    sys.excepthook = lambda *_: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        asyncio_logger.setLevel(asyncio_level)
        sys.unraisablehook, sys.excepthook = hooks
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def shrink(scenario: Scenario, failure: Failure, *, runs: int = 60) -> Failure:
    """Leave out faults while the same invariant breaks. Args: runs: most further runs."""
    best = failure
    size = max(1, len(best.plan) // 2)
    while runs > 0 and size >= 1 and best.plan:
        at = 0
        while at < len(best.plan) and runs > 0:
            plan = best.plan[:at] + best.plan[at + size :]
            runs -= 1
            smaller = run_seed(scenario, best.seed, plan=plan).failure
            if smaller is not None and smaller.invariant == best.invariant:
                best = smaller
            else:
                at += size
        if size == 1:
            break
        size //= 2
    return best


def explore(
    scenario: Scenario,
    seeds: Iterable[int] = range(1000),
    *,
    kinds: Iterable[str] = DEFAULT_KINDS,
    shrinks: bool = True,
    progress: Callable[[Outcome], object] | None = None,
) -> int:
    """Run a scenario with many seeds. Returns: the number of seeds.

    Args: kinds: of faults; shrinks: leave out faults of a failure; progress: called behind each run.
    Raises: SimulationFailed with the first failure, its seed and its shortest history.
    """
    count = 0
    for seed in seeds:
        outcome = run_seed(scenario, seed, kinds=kinds)
        count += 1
        if progress is not None:
            progress(outcome)
        if outcome.failure is not None:
            raise SimulationFailed(shrink(scenario, outcome.failure) if shrinks else outcome.failure)
    return count


def replay(
    scenario: Scenario,
    seed: int,
    *,
    until: float | None = None,
    plan: Iterable[Fault] | None = None,
    kinds: Iterable[str] = DEFAULT_KINDS,
) -> Failure | None:
    """Run one seed again. Args: until: virtual time at which the debugger starts. Returns: the failure."""
    return run_seed(scenario, seed, plan=plan, kinds=kinds, until=until).failure


Cluster.replay = staticmethod(replay)

"""The child: one case, with allocation 1, 2, ... failing, alone and then with the next 200, until the call meets none.

Room: tests; started by memory_runs.py with fail_malloc preloaded and PYTHONMALLOC=malloc. It must never make anything
of its own while the call runs, and never excuse an outcome but MemoryError or the call's own answer.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import CASES, Case, Stage

from mqfast.config import StoreConfig
from mqfast.errors import StorageError
from mqfast.store.base.results import StoreState
from mqfast.store.check.verify import verify
from mqfast.store.message_store import open_store
from mqfast.store.reader.store_reader import StoreReader

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from laboratory import lab

_ENOMEM: Final = 12
# Not for ever: CPython 3.11 goes round in a circle until it can make the number of the instruction that raised.
_ROW: Final = 200
# What threading raises in place of a MemoryError.
_PYTHONS_WORDS: Final = ("can't allocate lock", "can't start new thread")
# CPython 3.11 drops the exception under way when a frame that somebody holds ends and there is no memory for the frame
# object of its caller (take_ownership in frame.c). Of a function in Python only: one of ours would be named otherwise.
_DROPPED: Final = ("error return without exception set", "<function ")
_MOST_DROPPED: Final = 20
_SECONDS: Final = 60
_ROUNDS: Final = 60

library: Final = ctypes.PyDLL(None)
library.fail_call.restype = ctypes.py_object
library.fail_call.argtypes = [ctypes.py_object, ctypes.c_long, ctypes.c_long]
library.fail_others.argtypes = [ctypes.c_long]
for _name in ("fail_hits", "fail_live", "fail_seen"):
    getattr(library, _name).restype = ctypes.c_long


class Bad(AssertionError):
    """A failed allocation did more than raise."""


def want(true: bool, text: str) -> None:
    """Raise Bad unless it is true."""
    if not true:
        raise Bad(text)


def held(folder: str) -> tuple[int, int]:
    """(mappings, descriptors) of files below the folder."""
    with open("/proc/self/maps") as maps:
        mapped = maps.read().count(folder)
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(folder)
        except OSError:
            pass  # the descriptor of the listing itself
    return mapped, count


class Loop:
    """One case on one store."""

    def __init__(self, case: Case, folder: str, step: int, rng: random.Random) -> None:
        self.case = case
        self.stage = Stage(folder, case.settings)
        self.step = step
        self.dropped = 0
        self.rng = rng
        self.faults = 0
        self.raised = 0
        self.answered = 0
        self.calls = 0
        self.kept: list[Any] = []
        self.unraisable: list[str] = []

    def note_unraisable(self, args: Any) -> None:
        """An exception that nobody could catch; those of Python's threads and generators at their end are not ours."""
        text = f"{args.exc_type.__name__} in {args.object!r}"
        if "Thread._bootstrap" not in text and "generator object" not in text:
            self.unraisable.append(text)

    # --- one call ---

    def call(self, first: int, last: int) -> tuple[bool, Any, BaseException | None]:
        """(met a failure, answer, exception)."""
        stage, act = self.stage, self.case.act
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        error: BaseException | None = None
        answer = None

        def run() -> Any:
            return act(stage)

        try:
            answer = library.fail_call(run, first, last)
        except Exception as raised:
            error = raised.with_traceback(None)
            context = error
            while context is not None:
                context.__traceback__ = None
                context = context.__context__
        met = library.fail_hits()
        faulthandler.cancel_dump_traceback_later()
        self.calls += 1
        self.faults += met > 0
        return met > 0, answer, error

    def ready(self) -> None:
        """Before a call."""
        if self.case.again is not None:
            self.case.again(self.stage)

    def plain(self) -> Any:
        """The call with all its memory."""
        self.ready()
        met, answer, error = self.call(0, 0)
        want(not met, "memory failed where none was to fail")
        if error is not None:
            raise Bad(f"failed with all its memory: {error!r}") from error
        self.stored(None)
        return None if self.case.stores else answer

    # --- what a call left ---

    def stored(self, error: BaseException | None) -> None:
        """Count the records that the call has put into the log."""
        store, case = self.stage.store, self.case
        if not case.stores:
            return
        assert store is not None
        store.flush()  # what is not flushed, or is in a buffer of the pool, cannot be read
        end = store.log.written
        count = 0
        at = self.end
        while at < end:
            file = store.log.find_file(at)
            assert file is not None
            if store.log.read(at + 4, 4) == b"\xcb\xd4\x31\x94":
                at = file.start_offset + file.file_bytes
                continue
            at += int.from_bytes(store.log.read(at, 4), "big")
            count += 1
        want(at == end, f"a record reaches to {at}, the log ends at {end}")
        self.end = end
        if error is None:
            want(count == case.stores, f"{count} messages stored by a call that returned")
        elif not case.partly:
            want(count == 0, f"{count} messages stored by a call that raised {error!r}")

    def judge(self, error: BaseException | None, answer: Any, expected: Any) -> None:
        """After a call that met a failure."""
        if error is None:
            self.answered += 1
            if not self.case.stores:
                want(answer == expected, f"answered {answer!r}, expected {expected!r}")
            else:
                self.kept.append(answer)  # so that no free list has room for the next one
                del self.kept[:-200]
        else:
            self.raised += 1
            proper = (
                isinstance(error, MemoryError)
                or (isinstance(error, StorageError) and error.errno == _ENOMEM)
                or (isinstance(error, RuntimeError) and str(error) in _PYTHONS_WORDS)
                or type(error) in self.case.others
            )
            if isinstance(error, SystemError) and str(error).startswith(_DROPPED):
                self.dropped += 1
                proper = self.dropped <= _MOST_DROPPED
            want(proper, f"raised {type(error).__name__}: {error}")
        store = self.stage.store
        if store is not None and not lab(store).is_closed:
            want(store.state is StoreState.OPEN, f"the store is {store.state}")
        want(not self.unraisable, f"an exception went unraised: {self.unraisable}")
        self.stored(error)

    def same_again(self, expected: Any) -> None:
        """The same call works, and leaves no more mappings and descriptors than it did before."""
        answer = self.plain()
        want(answer == expected, f"answered {answer!r} afterwards, expected {expected!r}")
        if self.case.stores:
            return
        now = held(self.stage.folder)
        if now != self.base:
            gc.collect()
            now = held(self.stage.folder)
        if self.case.again is None or self.case.name.startswith(("open", "close")):
            want(now == self.base, f"{now} mappings and descriptors, before it were {self.base}")

    # --- all of a case ---

    def run(self) -> None:
        """Raises: Bad."""
        case, stage = self.case, self.stage
        case.before(stage)
        self.end = stage.store.log.written if stage.store is not None else 0
        expected = self.plain()
        expected = self.plain() if case.again is None else expected
        self.base = held(stage.folder)
        for row in (False, True):
            n = self.rng.randrange(self.step)
            while True:
                n += 1 if self.step == 1 else self.rng.randrange(1, 2 * self.step)
                try:
                    self.ready()
                    met, answer, error = self.call(n, n + _ROW if row else n)
                    if not met:
                        self.stored(error)
                        want(error is None, f"failed although it met no failure: {error!r}")
                        break
                    self.judge(error, answer, expected)
                    answer = error = None
                    self.same_again(expected)
                except Bad as bad:
                    raise Bad(f"{case.name}: allocation {n} fails{' and the next' if row else ''}: {bad}") from bad
        self.leaks(expected)
        self.finish()

    def leaks(self, expected: Any) -> None:
        """Fail at the same places many times: no block of memory may stay for each round."""
        if not self.case.compiled:
            return
        self.call(0, 0)
        total, live = library.fail_seen(), 0
        for n in sorted(self.rng.sample(range(1, total), min(total - 1, max(4, total // self.step)))):
            for row in (False, True):
                for rounds in (20, _ROUNDS):  # the first ones fill caches
                    for _ in range(rounds):
                        self.call(n, n + _ROW if row else n)
                    gc.collect()
                    before, live = live, library.fail_live()
                want(
                    live - before < _ROUNDS // 2,
                    f"{self.case.name}: allocation {n} fails{' and the next' if row else ''}, {_ROUNDS} times:"
                    f" {live - before} blocks of memory stay",
                )

    def finish(self) -> None:
        """The store is whole, and nothing of it is left behind in the process."""
        stage = self.stage
        self.kept.clear()
        stage.end()
        gc.collect()
        want(held(stage.folder) == (0, 0), f"{held(stage.folder)} mappings and descriptors after the close")
        report = verify(stage.path, config=stage.config)
        want(report.ok, f"verify: {report}")
        with stage.open() as store:
            for topic, queue_id, first, end in store.queues():
                at = first
                while at < end:
                    found = store.get(topic, queue_id, at)
                    offsets = [message.queue_offset for message in found]
                    if not lab(store).queues.is_batch(topic):  # there one message stands for several offsets
                        want(offsets == list(range(at, found.next_offset)), f"{topic}/{queue_id} from {at}: {offsets}")
                    want(found.next_offset > at, f"{topic}/{queue_id} ends at {at}, expected {end}")
                    at = found.next_offset
        with StoreReader(stage.path, config=stage.config) as reader:
            for _ in reader.scan():
                pass


def services(folder: str) -> dict[str, int]:
    """Every second, third, ... allocation of the service threads fails: they go on afterwards. Raises: Bad."""
    settings = {"dispatch": "background", "flush_interval_ms_commit_log": 10, "flush_interval_ms_consume_queue": 10}
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=1 << 16, mapped_file_bytes_consume_queue=2000, **settings)
    path = os.path.join(folder, "s")
    faults = sent = 0
    with open_store(path, config=config) as store:
        for every in (2, 3, 5, 9):
            store.put("t", b"the next file is there")
            library.fail_others(every)
            for _ in range(50):
                store.put("t", bytes(100), keys=f"k{sent}")
                sent += 1
                time.sleep(0.002)
            library.fail_others(0)
            faults += library.fail_hits()
            ticket = store.put_nowait("t", b"flushed by its service")
            told = threading.Event()
            ticket.add_done_callback(lambda ticket, told=told: told.set())
            want(told.wait(20), f"after every allocation number {every} failed: nobody finishes a ticket")
            sent += 2
            began = time.monotonic()
            while (behind := store.stats())["dispatch_behind_bytes"] or behind["service_errors"]:
                want(time.monotonic() - began < 20, f"after every allocation number {every} failed: {behind}")
                for service in lab(store).services:
                    service.wake()  # one that sleeps has an error until its turn is over
                time.sleep(0.01)
            ended = [s.name for s in lab(store).services if s._thread is None or not s._thread.is_alive()]
            want(not ended, f"service threads ended: {ended}")
        want(store.state is StoreState.OPEN, f"the store is {store.state}")
        want(store.max_offset("t", 0) == sent, f"{store.max_offset('t', 0)} messages, {sent} were put")
    want(verify(path, config=config).ok, "verify")
    return {"calls": sent, "faults": faults, "raised": 0, "answered": sent}


def run_services(folder: str) -> dict[str, Any]:
    """What main says of a case, for the service threads."""
    try:
        return {**services(folder), "bad": ""}
    except Bad as error:
        return {"calls": 0, "faults": 0, "raised": 0, "answered": 0, "bad": f"services: {error}"}
    finally:
        library.fail_others(0)


def main() -> int:
    """Run the cases named; one line of JSON each. Returns: 1 when something was wrong."""
    faulthandler.enable()
    logging.disable()
    seed, step, *names = sys.argv[1:]
    wrong = 0
    for name in names:
        scratch = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = tempfile.mkdtemp(prefix="mqfast-memory-", dir=scratch)
        if name == "services":
            print(json.dumps({"begin": name}), flush=True)
            said = run_services(folder)
            shutil.rmtree(folder, ignore_errors=True)
            print(json.dumps({"case": name, **said}), flush=True)
            wrong += bool(said["bad"])
            continue
        case = next(case for case in CASES if case.name == name)
        loop = Loop(case, folder, int(step), random.Random(f"{seed} {name}"))
        print(json.dumps({"begin": name}), flush=True)
        bad = ""
        try:
            sys.unraisablehook = loop.note_unraisable
            loop.run()
        except Bad as error:
            bad = str(error)
            wrong += 1
        finally:
            sys.unraisablehook = sys.__unraisablehook__
            shutil.rmtree(folder, ignore_errors=True)
        counts = {"calls": loop.calls, "faults": loop.faults, "raised": loop.raised, "answered": loop.answered}
        print(json.dumps({"case": name, **counts, "bad": bad}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

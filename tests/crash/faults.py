"""The fault loop: in every operation the n-th call of every kind fails, n = 1, 2, ... until it meets no fault.

Room: tests. It must never excuse a failure that it did not cause: once the fault is healed everything must work, unless
the store is latched, and then nothing may be written any more.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from harness import Run, Workload, check_image, leave, log_messages, want
from laboratory import lab

from mqfast.errors import CorruptFile, DiskFull, FlushError, MapFailed, MqfastError, StorageError, StoreFailed
from mqfast.sim.simulated_os import KILLED, SHORT_COUNT, STRICT, Image
from mqfast.store.base.results import StoreState

__all__ = ["ERRORS", "OPERATIONS", "Case", "Count", "kinds_called", "run_case", "run_kind"]

_E: Final = errno
# What each kind of call may fail with.
ERRORS: Final[dict[str, tuple[int, ...]]] = {
    "open": (_E.EIO, _E.EMFILE, _E.ENOSPC, _E.EDQUOT),
    "fallocate": (_E.ENOSPC, _E.EDQUOT, _E.EIO),
    "ftruncate": (_E.EIO, _E.ENOSPC, _E.EDQUOT),
    "fstat": (_E.EIO,),
    "stat": (_E.EIO,),
    "mmap": (_E.ENOMEM, _E.EIO),
    "madvise": (_E.ENOMEM, _E.EIO),
    "mlock": (_E.ENOMEM, _E.EAGAIN),
    "msync": (_E.EIO, _E.ENOSPC),
    "seek_data": (_E.EIO,),
    "pread": (_E.EIO, _E.EINTR, SHORT_COUNT),
    "pwrite": (_E.EIO, _E.ENOSPC, _E.EINTR, SHORT_COUNT),
    "fdatasync": (_E.EIO, _E.ENOSPC),
    "fsync": (_E.EIO, _E.ENOSPC, _E.EDQUOT),
    "rename": (_E.EIO, _E.ENOSPC),
    "unlink": (_E.EIO,),
    "mkdir": (_E.EIO, _E.ENOSPC),
    "rmdir": (_E.EIO,),
    "sync_directory": (_E.EIO, _E.ENOSPC),
    "statvfs": (_E.EIO,),
    "lock_byte": (_E.EIO, _E.ENOLCK),
    "sync_filesystem": (_E.EIO, _E.ENOSPC),
}
_SYNCS: Final = ("msync", "fsync", "fdatasync", "sync_directory", "sync_filesystem")
_LOG: Final = {"mapped_file_bytes_commit_log": 8192, "mapped_file_bytes_consume_queue": 200}
_MOST: Final = 60


@dataclass(frozen=True)
class Case:
    """One operation: what comes before it, the operation, the settings of its store."""

    name: str
    before: Callable[[Run], None]
    act: Callable[[Run], None]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Count:
    """What was met."""

    faults: int = 0
    raised: int = 0
    latched: int = 0
    full: int = 0


def _opened(run: Run) -> None:
    run.open()
    for i in range(9):
        run.put(size=300, keys=f"k{i}")
    run.reput()
    run.flush_log()


def _closed(run: Run) -> None:
    _opened(run)
    run.close()


def _killed(run: Run) -> None:
    _opened(run)
    run.put(size=300)
    run.commit_if_pooled()
    run.abandon()
    run.survivors()


def _nothing(run: Run) -> None:
    del run


def _open(run: Run) -> None:
    run.open()


def _puts(run: Run) -> None:
    for _ in range(12):
        run.put(size=1200)


def _keyed(run: Run) -> None:
    for i in range(40):
        run.put(size=20, keys=f"more{i}")
    run.reput()


def _get(run: Run) -> None:
    assert len(run.store.get("t", 0, 0)) > 0
    assert run.store.query("t", "k1")
    assert run.store.offset_by_time("t", 0, 0) == 0


def _flush(run: Run) -> None:
    run.put()
    run.flush()


def _flush_many_queues(run: Run) -> None:
    lab(run.store).queues.many = 2
    _flush_queues(run)


def _flush_queues(run: Run) -> None:
    run.put()
    run.flush_log()
    run.reput()
    run.flush_queues()


def _commit(run: Run) -> None:
    run.put()
    run.commit()


def _offsets(run: Run) -> None:
    run.offsets("g", "t", 0, 3)


def _topics(run: Run) -> None:
    run.put("fresh")
    run.reput()
    lab(run.store).persist_topics()


def _retained(run: Run) -> None:
    _opened(run)
    for _ in range(40):
        run.put(size=900)
    run.flush_log()
    run.reput()


def _delete(run: Run) -> None:
    run.delete_topic("t")


OPERATIONS: Final = (
    Case("open-new", _nothing, _open),
    Case("open-clean", _closed, _open),
    Case("open-recover", _killed, _open),
    Case("open-pool", _killed, _open, {"transient_store_pool_enable": True}),
    Case("put", _opened, _puts),
    Case("put-sync", _opened, _puts, {"flush_disk_type": "SYNC_FLUSH"}),
    Case("put-pool", _opened, _puts, {"transient_store_pool_enable": True}),
    Case("put-warm", _opened, _puts, {"warm_mapped_file_enable": True}),
    Case("put-first", _open, _puts),
    Case("put-many", _opened, lambda run: run.put_many(30, size=700)),
    Case("put-many-sync", _opened, lambda run: run.put_many(30, size=700), {"flush_disk_type": "SYNC_FLUSH"}),
    Case("put-batch", _opened, lambda run: run.put_batch([900] * 7, ["a", "b"])),
    Case("keys", _opened, _keyed),
    Case("get", _opened, _get),
    Case("flush", _opened, _flush),
    Case("flush-pool", _opened, _flush, {"transient_store_pool_enable": True}),
    Case("flush-queues", _opened, _flush_queues),
    Case("flush-many-queues", _opened, _flush_many_queues),
    Case("commit", _opened, _commit, {"transient_store_pool_enable": True}),
    Case("offsets", _opened, _offsets),
    Case("topics", _opened, _topics),
    Case("retention", _retained, lambda run: run.retain(), {"retention_bytes": 16384}),
    Case("delete-topic", _opened, _delete),
    Case("close", _opened, lambda run: run.close()),
    Case("close-sync", _opened, lambda run: run.close(), {"flush_disk_type": "SYNC_FLUSH"}),
)


def kinds_called(case: Case, base: str) -> list[str]:
    """The kinds of calls that the operation makes: no other kind can fail in it."""
    run = _fresh(case, base)
    try:
        case.before(run)
        before = {kind: run.sim.count(kind) for kind in ERRORS}
        case.act(run)
        return [kind for kind in ERRORS if run.sim.count(kind) > before[kind]]
    finally:
        run.end()


def _fresh(case: Case, base: str) -> Run:
    folder = os.path.join(base, "case")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return Run(Workload(case.name, _nothing, {**_LOG, **case.settings}), folder)


def run_kind(case: Case, kind: str, base: str, count: Count, most: int = _MOST) -> Iterator[str]:
    """All faults of one kind in one operation. Yields: what was wrong, with the fault that shows it."""
    for for_ever in (False, True):
        for n in range(1, most):
            error = ERRORS[kind][(n + for_ever) % len(ERRORS[kind])]
            if for_ever and error == _E.EINTR:
                error = _E.EIO  # no system interrupts a call for ever
            try:
                met = run_case(case, kind, n, error, for_ever, base, count)
            except Exception as failure:
                if not isinstance(failure, AssertionError):
                    failure = RuntimeError(f"{type(failure).__name__}: {failure}")
                name = "SHORT" if error == SHORT_COUNT else errno.errorcode[error]
                again = " for ever" if for_ever else ""
                yield f"{case.name}: call {n} of {kind} fails with {name}{again}: {failure}"
                continue
            if not met:
                break


def run_case(case: Case, kind: str, n: int, error: int, for_ever: bool, base: str, count: Count) -> bool:
    """One fault. Returns: was it met? Raises: AssertionError."""
    run = _fresh(case, base)
    try:
        case.before(run)
        run.sim.fault(kind, n, error, for_ever)
        failure: MqfastError | None = None
        try:
            case.act(run)
        except MqfastError as raised:
            failure = raised.with_traceback(None)
        met = run.sim.fault_hits > 0
        if met:
            count.faults += 1
            _judge(run, case, kind, error, failure, count)
        else:
            want(failure is None, f"failed without a fault: {failure!r}")
        return met
    finally:
        run.sim.heal()
        run.end()


def _judge(run: Run, case: Case, kind: str, error: int, failure: MqfastError | None, count: Count) -> None:
    if failure is not None:
        count.raised += 1
        want(error not in (_E.EINTR, SHORT_COUNT) or kind not in ("pread", "pwrite"), f"not carried on: {failure!r}")
        want(isinstance(failure, StorageError), f"expected a StorageError, found {failure!r}")
        want(not isinstance(failure, CorruptFile), f"a failed call is no damage: {failure!r}")
        if error in (_E.ENOSPC, _E.EDQUOT):
            want(isinstance(failure, DiskFull | FlushError | StoreFailed), f"expected DiskFull, found {failure!r}")
        elif (kind == "mmap" and error == _E.ENOMEM) or (kind == "open" and error == _E.EMFILE):
            want(isinstance(failure, MapFailed | FlushError), f"expected MapFailed, found {failure!r}")
    store = run.store
    if store is None or lab(store).is_closed:
        _after_close(run, failure)
        return
    if store.state is StoreState.FAILED:
        count.latched += 1
        _latched(run)
    else:
        if store.state is StoreState.FULL:
            count.full += 1
        run.sim.heal()
        lab(store).allocate.retry_now()  # a full disk is asked once a second
        _trim(run)
        run.put(size=200)
        run.reput()
        run.flush()
        run.flush_queues()
        want(store.state is not StoreState.FAILED, "latched after the fault was healed")
    run.sim.heal()
    _close(run, kind)
    _after_close(run, failure)


def _trim(run: Run) -> None:
    """A put that was refused left nothing: what follows takes its number."""
    run.store.log.commit()
    present = len(log_messages(run.path))
    first = run.store.min_physical_offset
    if first <= 0:
        least = max((i for i, (what, _) in enumerate(run.notes) if what == "kept"), default=-1)
        kept = sum(what == "send" for what, _ in run.notes[: least + 1])
        want(present >= kept, f"{present} messages in the log, {kept} were acknowledged")
        while len(run.sent) > present:
            run.sent.pop()
            last = max(i for i, (what, _) in enumerate(run.notes) if what == "send")
            del run.notes[last]
    run.note("kept")


def _latched(run: Run) -> None:
    before = run.sim.count("msync") + run.sim.count("fsync") + run.sim.count("fdatasync") + run.sim.count("pwrite")
    for attempt in (lambda: run.store.put("t", b"no"), lambda: run.store.put_many("t", [b"no"]), run.store.flush):
        try:
            attempt()
        except StoreFailed:
            continue
        want(False, "a latched store took a message or a flush")
    after = run.sim.count("msync") + run.sim.count("fsync") + run.sim.count("fdatasync") + run.sim.count("pwrite")
    want(after == before, "a latched store synced again")


def _close(run: Run, kind: str) -> None:
    failed = run.store.state is StoreState.FAILED
    try:
        run.store.close()
    except MqfastError as raised:
        want(failed or kind in _SYNCS, f"close failed once the fault was healed: {raised!r}")
    else:
        if not failed:
            run.note("durable")


def _after_close(run: Run, failure: MqfastError | None) -> None:
    run.sim.heal()
    if run.sim.open_maps or run.sim.open_fds:
        del failure
        gc.collect()
        if run.store is not None and not lab(run.store).is_closed:
            leave(run.store)
    want(
        run.sim.open_maps == 0 and run.sim.open_fds == 0, f"left {run.sim.open_maps} mappings, {run.sim.open_fds} files"
    )
    want(run.sim.resyncs == 0, f"{run.sim.resyncs} syncs of pages that an earlier sync had failed on")
    for mode in (KILLED, STRICT):
        target = os.path.join(os.path.dirname(run.root), f"image{mode}")
        run.sim.image(target, mode)
        check_image(target, Image(0, len(run.notes), mode, 0), run.notes, run.sent, run.workload)
        shutil.rmtree(target)

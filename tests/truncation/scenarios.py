"""What happens to a store whose files another process cuts short or removes: one scenario a process, JSON on stdout.

Room: tests/truncation. Each scenario runs in a process of its own, so that a SIGBUS ends that process and is seen by
its parent as a signal, not as the end of the test run. It must never judge: it reports what each call did, and
test_truncation.py compares.
Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mqfast
from mqfast.message import Message
from mqfast.store.base.os_api import guarded_count, lost_page_count

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from laboratory import lab

LOG_BYTES = 1 << 20
QUEUE_BYTES = 20 * 1024
BODY = b"x" * 500


def opened(path: Path, **settings: Any) -> mqfast.MessageStore:
    """Open a store of small files."""
    defaults: dict[str, Any] = {
        "mappedFileSizeCommitLog": LOG_BYTES,
        "mappedFileSizeConsumeQueue": QUEUE_BYTES,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
    }
    return mqfast.open(path, **defaults | settings)


def dispatched(store: mqfast.MessageStore) -> None:
    """Let queues and index catch up with the log."""
    while store.log.dispatched < store.log.written:
        lab(store).step_dispatch()


def outcome(call: Callable[[], Any]) -> list[str]:
    """["ok", text] or [name of the exception, text]."""
    try:
        return ["ok", str(call())[:200]]
    except Exception as error:
        return [type(error).__name__, str(error)]


def until_refused(call: Callable[[], Any], most: int = 20000) -> list[Any]:
    """[how many calls succeeded, name, text]; name is "ok" when none was refused."""
    for done in range(most):
        try:
            call()
        except Exception as error:
            return [done, type(error).__name__, str(error)]
    return [most, "ok", ""]


def harm(path: Path, kind: str) -> None:
    """Do to a file what ``kind`` says, as another process would."""
    if kind == "remove":
        path.unlink()
    elif kind == "other process":
        subprocess.run(["truncate", "-s", "0", str(path)], check=True)
    else:
        os.truncate(path, int(kind))


def log_file(store: Path, number: int = 0) -> Path:
    """The number-th file of the log."""
    return sorted((store / "commitlog").iterdir())[number]


def queue_file(store: Path, number: int = 0) -> Path:
    """The number-th file of queue T/0."""
    return sorted((store / "consumequeue" / "T" / "0").iterdir())[number]


def ways(store: mqfast.MessageStore) -> dict[str, Callable[[], Any]]:
    """Every way to put one or more messages."""
    producer = store.producer("T", 0)
    return {
        "put": lambda: store.put("T", BODY),
        "producer": lambda: producer.put(BODY),
        "producer with key": lambda: producer.put(BODY, "k"),
        "put_many": lambda: producer.put_many([BODY] * 5),
        "put_batch": lambda: store.put_batch([Message("T", BODY) for _ in range(3)]),
        "put with properties": lambda: store.put("T", BODY, properties={"a": "b"}),
        "put_nowait": lambda: store.put_nowait("T", BODY).wait(),
    }


# --- the writer's own files ------------------------------------------------------------------------------------------


def log_under_writer(path: Path, kind: str, way: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The current log file goes while messages are put."""
    store = opened(path, **settings)
    put = ways(store)[way]
    for _ in range(40):
        put()
    harm(log_file(path), kind)
    report: dict[str, Any] = {"refused": until_refused(put, 1), "flush": outcome(store.flush)}
    report |= {"again": until_refused(put, 1), "state": str(store.state)}
    report["close"] = outcome(store.close)
    report["abort"] = (path / "abort").exists()
    report["guarded"] = guarded_count()
    return report


def unflushed_without_touch(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Acknowledged but not durable, then gone, and no page is touched again: the flush must not call it durable."""
    calm = {"flushIntervalCommitLog": 100_000, "flushCommitLogThoroughInterval": 100_000, "prefault_window_bytes": 0}
    store = opened(path, dispatch="inline", **{**calm, **settings})
    store.put("T", BODY)
    dispatched(store)
    result = store.put("T", BODY)
    if store.log.pool is not None:
        store.log.commit()  # else the flush would write it into the file once more
    os.truncate(log_file(path), 0)
    report = {"flush": outcome(store.flush), "flushed": store.log.flushed, "end": result.physical_offset}
    report |= {"pages": lost_page_count(), "state": str(store.state)}
    report["close"] = outcome(store.close)
    return report


def queue_under_writer(path: Path, kind: str, dispatch: str) -> dict[str, Any]:
    """The tail of a queue goes while its units are put."""
    store = opened(path, dispatch=dispatch, flushIntervalConsumeQueue=50)
    for _ in range(40):
        store.put("T", BODY)
    dispatched(store)
    report: dict[str, Any] = {"max": store.max_offset("T", 0)}
    harm(queue_file(path), kind)
    until = time.monotonic() + 10
    refused = until_refused(lambda: store.put("T", BODY), 1)
    while refused[1] == "ok" and "flush" not in store.stats()["service_errors"] and time.monotonic() < until:
        refused = until_refused(lambda: store.put("T", BODY), 1)
        time.sleep(0.005)
    report |= {
        "refused": refused,
        "get": outcome(lambda: len(store.get("T", 0, 0).bodies())),
        "state": str(store.state),
    }
    report["service_errors"] = store.stats()["service_errors"]
    report["close"] = outcome(store.close)
    report["abort"] = (path / "abort").exists()
    return report


def index_under_writer(path: Path, kind: str, dispatch: str) -> dict[str, Any]:
    """The index file goes while keys are put."""
    store = opened(path, dispatch=dispatch)
    for number in range(40):
        store.put("T", BODY, keys=f"k{number}")
    dispatched(store)
    report: dict[str, Any] = {"before": outcome(lambda: len(store.query("T", "k7")))}
    harm(next((path / "index").iterdir()), kind)
    report["put"] = until_refused(lambda: store.put("T", BODY, keys="more"), 5)
    until = time.monotonic() + 10
    while kind != "remove" and not lost_page_count() and time.monotonic() < until:
        outcome(lab(store).catch_up)
    report["query"] = outcome(lambda: len(store.query("T", "k7")))
    report["flush"] = outcome(lambda: lab(store).index.flush())  # type: ignore[union-attr]
    report["close"] = outcome(store.close)
    report["abort"] = (path / "abort").exists()
    return report


# --- readers ---------------------------------------------------------------------------------------------------------


def _three_files(path: Path, **settings: Any) -> mqfast.MessageStore:
    store = opened(path, **settings)
    producer = store.producer("T", 0)
    while len(store.log.files) < 3:
        producer.put(BODY, f"k{store.put_count}")
    dispatched(store)
    store.flush()
    store.log.reap()  # nobody writes to the older files any more
    return store


def old_log_under_reader(path: Path, kind: str) -> dict[str, Any]:
    """An old log file goes: its messages cannot be read, everything else can, and puts go on."""
    store = _three_files(path)
    number = 100
    physical = store.get("T", 0, number).messages[0].physical_offset
    harm(log_file(path), kind)
    report = {
        "get": outcome(lambda: len(store.get("T", 0, number).bodies())),
        "look": outcome(lambda: len(store.get_by_offset(physical).body)),
        "query": outcome(lambda: len(store.query("T", f"k{number}"))),
        "by_time": outcome(lambda: store.offset_by_time("T", 0, 1)),
        "numpy": outcome(lambda: len(store.get("T", 0, number).to_numpy())),
        "newer": outcome(lambda: len(store.get("T", 0, store.max_offset("T", 0) - 9).bodies())),
        "put": until_refused(lambda: store.put("T", BODY), 50),
        "flush": outcome(store.flush),
        "state": str(store.state),
    }
    report["close"] = outcome(store.close)
    return report


def old_queue_under_reader(path: Path, kind: str) -> dict[str, Any]:
    """An old queue file goes."""
    store = _three_files(path)
    harm(queue_file(path), kind)
    report = {
        "get": outcome(lambda: len(store.get("T", 0, 100).bodies())),
        "newer": outcome(lambda: len(store.get("T", 0, store.max_offset("T", 0) - 9).bodies())),
        "put": until_refused(lambda: store.put("T", BODY), 50),
        "state": str(store.state),
    }
    report["close"] = outcome(store.close)
    return report


def held_results(path: Path) -> dict[str, Any]:
    """A result, a message and a view that were taken before the file was cut."""
    store = _three_files(path)
    result = store.get("T", 0, 100)
    fresh, parsed = result.messages[0], result.messages[1]
    assert parsed.topic == "T"
    view = parsed.body
    assert bytes(view) == BODY
    os.truncate(log_file(path), 0)
    report = {
        "view": outcome(lambda: bytes(view) == bytes(len(BODY))),
        "fresh": outcome(lambda: fresh.topic),
        "body": outcome(lambda: bytes(parsed.body)),
        "bodies": outcome(result.bodies),
        "numpy": outcome(result.to_numpy),
        "arrow": outcome(result.__arrow_c_array__),
    }
    report["close"] = outcome(store.close)
    report["after close"] = outcome(lambda: bytes(view) == bytes(len(BODY)))
    return report


def during_recovery(path: Path, which: str) -> dict[str, Any]:
    """A file goes while the store is being opened."""
    _three_files(path).close()
    (path / "abort").touch()
    cut = []

    def progress(_done: int, _all: int) -> None:
        if not cut:
            cut.append(1)
            os.truncate(log_file(path, 1) if which == "log" else queue_file(path, -1), 0)

    report = {"open": outcome(lambda: opened(path, progress=progress))}
    report["guarded"] = guarded_count()
    return report


def store_reader(path: Path, which: str, kind: str) -> dict[str, Any]:
    """A StoreReader of another process's store reads by pread."""
    _three_files(path).close()
    reader = mqfast.StoreReader(path)
    report: dict[str, Any] = {"before": outcome(lambda: len(reader.get("T", 0, 100).messages))}
    if which == "log":
        harm(log_file(path), kind)
    elif which == "queue":
        harm(queue_file(path), kind)
    else:
        harm(next((path / "index").iterdir()), kind)
    began = time.monotonic()
    report |= {
        "get": outcome(lambda: len(reader.get("T", 0, 100).messages)),
        "look": outcome(lambda: len(reader.get_by_offset(0).body)),
        "query": outcome(lambda: len(reader.query("T", "k100"))),
        "scan": outcome(lambda: sum(1 for _ in reader.scan())),
    }
    report["seconds"] = time.monotonic() - began
    return report


# --- all at once -----------------------------------------------------------------------------------------------------


def hammer(path: Path, seed: int) -> dict[str, Any]:
    """Threads put and read while another process cuts one file short; all must end with an error of ours."""
    rng = random.Random(seed)
    sync = rng.random() < 0.3
    store = opened(
        path,
        flushDiskType="SYNC_FLUSH" if sync else "ASYNC_FLUSH",
        dispatch=rng.choice(["inline", "background"]),
        mappedFileSizeCommitLog=64 << 20,
    )
    for number in range(500):
        store.put("T", BODY, keys=f"k{number}")
    dispatched(store)
    which = rng.choice(["log", "log", "queue", "index"])
    target = {"log": log_file, "queue": queue_file}.get(which, lambda p: next((p / "index").iterdir()))(path)
    pause = rng.random() * 0.1
    script = f"import os,time\ntime.sleep({pause})\nos.truncate({str(target)!r}, {rng.choice([0, 4096, 5000])})"
    ended: list[str] = []
    stop = time.monotonic() + 1.5

    def run(call: Callable[[], Any]) -> None:
        while time.monotonic() < stop:
            try:
                call()
            except mqfast.errors.MqfastError as error:
                ended.append(type(error).__name__)
                return
        ended.append("ok")

    def read() -> None:
        store.get("T", 0, max(0, store.max_offset("T", 0) - rng.randrange(1000))).bodies()
        store.query("T", f"k{rng.randrange(500)}")

    calls: list[Callable[[], Any]] = [lambda: store.put("T", BODY, keys="k1"), ways(store)["put_many"], read]
    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    subprocess.run([sys.executable, "-S", "-c", script], check=True)
    for thread in threads:
        thread.join()
    report = {"which": which, "sync": sync, "ended": ended, "files": len(store.log.files), "pages": lost_page_count()}
    report["close"] = outcome(store.close)
    report["abort"] = (path / "abort").exists()
    return report


def two_stores(path: Path) -> dict[str, Any]:
    """Damage of one store is its own; guarding never ends."""
    one, two = opened(path / "one"), opened(path / "two")
    for store in (one, two):
        for _ in range(40):
            store.put("T", BODY)
    os.truncate(log_file(path / "one"), 0)
    report: dict[str, Any] = {"one": until_refused(lambda: one.put("T", BODY), 1), "state one": str(one.state)}
    report["two"] = until_refused(lambda: two.put("T", BODY), 200)
    report["state two"] = str(two.state)
    one.close()
    report["close two"] = outcome(two.close)
    report["guarded"] = guarded_count()
    third = opened(path / "three")
    third.put("T", BODY)
    os.truncate(log_file(path / "three"), 0)
    report["three"] = until_refused(lambda: third.put("T", BODY), 1)
    return report


def many_mappings(path: Path) -> dict[str, Any]:
    """More mappings than one block of the table has, some given up and taken again."""
    store = opened(path)
    for number in range(600):
        store.put("T" if number == 599 else f"Q{number}", BODY)
    dispatched(store)
    report: dict[str, Any] = {"guarded": guarded_count()}
    for number in range(0, 300):
        store.delete_topic(f"Q{number}")
    for number in range(600, 700):
        store.put(f"Q{number}", BODY)
    dispatched(store)
    report["later"] = guarded_count()
    os.truncate(queue_file(path), 0)
    report["dispatch"] = outcome(lambda: (store.put("T", BODY), dispatched(store)))
    report["put"] = until_refused(lambda: store.put("T", BODY), 1)
    report["close"] = outcome(store.close)
    report["closed"] = guarded_count()
    return report


# --- other people's signals ------------------------------------------------------------------------------------------


def _touch_a_foreign_page(path: Path) -> None:
    foreign = path.parent / "foreign"
    foreign.write_bytes(bytes(8192))
    with foreign.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        os.truncate(foreign, 0)
        print(json.dumps({"foreign": "touched"}), flush=True)
        ctypes.string_at(ctypes.addressof(ctypes.c_char.from_buffer(mapped)), 1)


def _lose_a_page(path: Path) -> mqfast.MessageStore:
    store = opened(path)
    for _ in range(40):
        store.put("T", BODY)
    os.truncate(log_file(path), 0)
    return store


def foreign_fault(path: Path, enabled: str) -> dict[str, Any]:
    """A SIGBUS that is none of ours: the process ends by it, and faulthandler prints once."""
    if enabled == "before":
        faulthandler.enable()
    if enabled == "after":
        opened(path).put("T", BODY)
        faulthandler.enable()  # over our handler, and while no page of ours is lost: that would end the process as well
    else:
        store = _lose_a_page(path)
        if until_refused(lambda: store.put("T", BODY), 1)[1] != "StoreFailed":
            raise AssertionError("the put was not refused")
    _touch_a_foreign_page(path)
    return {"outlived": True}


def _bus_handler() -> bytes:
    """What the process does at SIGBUS, as the system tells."""
    action = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).sigaction(signal.SIGBUS, None, action)
    return action.raw[:8]  # its first field; what stands behind its fields is anything


def handler_of_others(path: Path) -> dict[str, Any]:
    """The handler of the process before a store, after its close, and when somebody put another one over ours."""
    before = _bus_handler()
    store = opened(path)
    for _ in range(40):
        store.put("T", BODY)
    with_store = _bus_handler()
    store.close()
    del store
    closed = _bus_handler()
    store = opened(path)
    faulthandler.enable()
    theirs = _bus_handler()
    for _ in range(400):  # new mappings, and syncs
        store.put("T", BODY)
        store.flush()
    with_both = _bus_handler()
    store.close()
    return {
        "ours": with_store != before,
        "restored": closed == before,
        "left alone": with_both == theirs and _bus_handler() == theirs,
    }


def refused_guard(path: Path) -> dict[str, Any]:
    """A store with ``sigbus_guard=False``: no handler is there, and a page that is lost ends the process."""
    before = _bus_handler()
    store = opened(path, sigbus_guard=False)
    for _ in range(40):
        store.put("T", BODY)
    print(json.dumps({"no handler": _bus_handler() == before}), flush=True)
    os.truncate(log_file(path), 0)
    until_refused(lambda: store.put("T", BODY), 1)
    return {"outlived": True}


def sent_signal(path: Path, how: str) -> dict[str, Any]:
    """kill -BUS: ends the process, or calls the handler that Python code has set."""
    calls: list[int] = []
    if how == "python handler":
        signal.signal(signal.SIGBUS, lambda number, _frame: calls.append(number))
    if how == "ignored":
        signal.signal(signal.SIGBUS, signal.SIG_IGN)
    store = _lose_a_page(path)
    refused = until_refused(lambda: store.put("T", BODY), 1)
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGBUS)
    return {"calls": len(calls), "put": refused}


def main() -> None:
    """Run the scenario that the arguments name."""
    name, path, arguments = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    print(json.dumps(globals()[name](path, *arguments)), flush=True)


if __name__ == "__main__":
    main()

"""A store on a filesystem that is filled to its last block: one scenario a process, outcomes as JSON on stdout.

Room: tests/block. Each scenario gets an empty mounted filesystem, so that a SIGBUS or a hang ends that process and not
the test run. It must never judge: test_full_disk.py compares.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mqfast
from mqfast.store.base.os_api import lost_page_count
from mqfast.store.meta.offsets import ConsumerOffsets

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from laboratory import lab

LOG_BYTES = 4 << 20
BODY = bytes(range(250)) * 40
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": LOG_BYTES,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 20000,
    "cleanResourceInterval": 600_000,  # the watermarks are another scenario
    "flushConsumerOffsetInterval": 600_000,
    "preallocate_files": 0,
}


def fill(mount: Path, leave_bytes: int = 0) -> None:
    """Take every block but so many bytes of them."""
    with (mount / "filler").open("ab") as file:
        position = 0
        for step in (1 << 20, 64 << 10, 4 << 10):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), position, step)
                    position += step
        if leave_bytes:
            os.ftruncate(file.fileno(), max(0, position - leave_bytes))
        os.fsync(file.fileno())


def free(mount: Path) -> None:
    """Give all of it back."""
    (mount / "filler").unlink()


def outcome(call: Callable[[], Any]) -> list[Any]:
    """["ok", text, seconds] or [name of the exception, text, seconds]."""
    began = time.monotonic()
    try:
        return ["ok", str(call())[:200], time.monotonic() - began]
    except Exception as error:
        return [type(error).__name__, str(error), time.monotonic() - began]


def until_refused(call: Callable[[], Any], most: int) -> list[Any]:
    """[calls that succeeded, name of the exception or "ok", text]."""
    for done in range(most):
        try:
            call()
        except Exception as error:
            return [done, type(error).__name__, str(error)]
    return [most, "ok", ""]


def tries_until(call: Callable[[], Any], limit_s: float = 60.0) -> int:
    """How often the call was tried, every 10 ms, until it succeeded."""
    began = time.monotonic()
    for tries in itertools.count(1):
        try:
            call()
            return tries
        except Exception:
            if time.monotonic() - began > limit_s:
                raise
        time.sleep(0.01)
    raise AssertionError("unreachable")


def bodies(store: mqfast.MessageStore, topic: str = "T") -> int:
    """How many messages of queue 0 can be read, each compared."""
    offset = 0
    while True:
        result = store.get(topic, 0, offset, 100, 64 << 20)
        if not len(result):
            return offset
        for body in result.bodies():
            if body != BODY:
                raise AssertionError(f"offset {offset}: another body")
            offset += 1


def finish(store: mqfast.MessageStore, mount: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Close, open again, verify."""
    report: dict[str, Any] = {"close": outcome(store.close)}
    checked = mqfast.verify(mount / "store")
    report["verify"] = [checked.state, [str(damage) for damage in checked.damages]]
    with mqfast.open(mount / "store", **settings) as again:
        report["again"] = bodies(again)
    report["lost pages"] = lost_page_count()
    return report


def log(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """No room for the next log file."""
    settings = SETTINGS | options
    store = mqfast.open(mount / "store", **settings)
    store.put("T", BODY)
    tries_until(lambda: store.get("T", 0, 0).bodies()[0])  # the queue has its file before the disk is full
    fill(mount, leave_bytes=3 << 20)
    refused = until_refused(lambda: store.put("T", BODY), 100_000)
    report: dict[str, Any] = {"refused": refused, "state": str(store.state)}
    report |= {"once more": outcome(lambda: store.put("T", BODY)), "stats": store.stats()["allocation_error"]}
    report |= {"flush": outcome(store.flush), "get": outcome(lambda: bodies(store))}
    free(mount)
    report["on after"] = tries_until(lambda: store.put("T", BODY))
    report |= {"state after": str(store.state), "more": until_refused(lambda: store.put("T", BODY), 500)}
    report["put"] = refused[0] + 2 + 500
    return report | finish(store, mount, settings)


def last_block(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Not one free block: what has its blocks is still written, flushed and read."""
    settings = SETTINGS | options
    store = mqfast.open(mount / "store", **settings)
    store.put("T", BODY)
    bodies(store)
    fill(mount)
    report: dict[str, Any] = {"puts": until_refused(lambda: store.put("T", BODY), 150), "flush": outcome(store.flush)}
    report |= {"get": outcome(lambda: bodies(store)), "state": str(store.state)}
    free(mount)
    return report | finish(store, mount, settings)


def queue(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """No room for a queue's first file, and none for another's next blocks."""
    settings = SETTINGS | options
    store = mqfast.open(mount / "store", **settings)
    producer = store.producer("Grow", 0)
    producer.put(b"x")
    bodies_of = {"Grow": 1}
    lab(store).step_dispatch()
    fill(mount)
    report: dict[str, Any] = {"put new": until_refused(lambda: store.put("T", BODY), 20)}
    report["grow"] = until_refused(lambda: producer.put(b"x"), 3000)
    bodies_of["Grow"] += report["grow"][0]
    report |= {
        "get": outcome(lambda: bodies(store)),
        "look": outcome(lambda: store.get_by_offset(0).topic),
        "flush": outcome(store.flush),
    }
    report |= {"state": str(store.state), "waits": store.stats()["waits_for_space"]}
    free(mount)
    report["on after"] = tries_until(lambda: _want(bodies(store), 20))
    report["grown"] = [bodies_of["Grow"], store.max_offset("Grow", 0)]
    return report | finish(store, mount, settings)


def _want(found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{found}, not {expected}")


def _left_behind(directory: Path) -> list[str]:
    """Names that stay: the dispatch thread tries again and again, and removes the part that it could make."""
    names: list[str] = []
    for _ in range(500):
        names = [path.name for path in directory.glob("*")]
        if not names:
            break
        time.sleep(0.01)
    return names


def index(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """No room for the first index file."""
    settings = SETTINGS | options
    store = mqfast.open(mount / "store", **settings)
    store.put("T", BODY)
    bodies(store)
    fill(mount)
    report: dict[str, Any] = {"put": until_refused(lambda: store.put("T", BODY, keys="k"), 20)}
    report["query"] = outcome(lambda: len(store.query("T", "k")))
    report |= {"get": outcome(lambda: bodies(store)), "state": str(store.state)}
    report["waits"] = store.stats()["waits_for_space"]
    report["left behind"] = _left_behind(mount / "store" / "index")
    free(mount)
    report["on after"] = tries_until(lambda: _want(len(store.query("T", "k")), 20))
    return report | finish(store, mount, settings)


def config(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """No room for the JSON files and the checkpoint."""
    settings = SETTINGS | options | {"flushConsumerOffsetInterval": 50}
    store = mqfast.open(mount / "store", **settings)
    for _ in range(50):
        store.put("T", BODY)
    bodies(store)
    consumer = store.consumer("group", "T")
    consumer.poll()
    consumer.commit()
    consumer.sync()
    path = mount / "store" / "config" / "consumerOffset.json"
    before = path.read_bytes()
    fill(mount)
    groups = [f"group{number:04d}{'x' * 100}" for number in range(200)]  # more than the old file's block holds
    for name in groups:
        store.consumer_offsets.commit(name, "T", 0, 7)
    report: dict[str, Any] = {"sync": outcome(consumer.sync), "kept": path.read_bytes() == before}
    report["put"] = outcome(lambda: store.put("T", BODY))
    tries_until(lambda: _want(sum("consumerOffset" in text for text in store.stats()["waits_for_space"]), 1))
    report |= {"state": str(store.state), "waits": store.stats()["waits_for_space"]}
    free(mount)
    report["on after"] = tries_until(lambda: _want(path.read_text().count("T@group0"), 200))
    report["valid"] = ConsumerOffsets.load(store.os_api, str(path)).get(groups[-1], "T", 0) == 7
    return report | finish(store, mount, settings)


def opening(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """A store is opened, and a new one made, while nothing is free."""
    settings = SETTINGS | options
    with mqfast.open(mount / "store", **settings) as store:
        for _ in range(50):
            store.put("T", BODY)
    fill(mount)
    report: dict[str, Any] = {"new": outcome(lambda: _open_and_put(mount / "another", settings))}
    report["existing"] = outcome(lambda: _open_and_read(mount / "store", settings))
    free(mount)
    report["on after"] = tries_until(lambda: _open_and_put(mount / "another", settings))
    return report | finish(mqfast.open(mount / "store", **settings), mount, settings)


def _open_and_put(path: Path, settings: dict[str, Any]) -> None:
    with mqfast.open(path, **settings) as store:
        store.put("T", BODY)


def _open_and_read(path: Path, settings: dict[str, Any]) -> int:
    with mqfast.open(path, **settings) as store:
        return bodies(store)


def watermark(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Above the warning level puts are refused before the disk is full, and taken again below it."""
    settings = SETTINGS | options | {"cleanResourceInterval": 100, "cleanFileForciblyEnable": False}
    store = mqfast.open(mount / "store", **settings)
    store.put("T", BODY)
    lab(store).step_dispatch()
    fill(mount)
    began = time.monotonic()
    while str(store.state) != "full" and time.monotonic() < began + 10:
        time.sleep(0.01)
    report: dict[str, Any] = {"put": outcome(lambda: store.put("T", BODY)), "get": outcome(lambda: bodies(store))}
    report["state"] = str(store.state)
    free(mount)
    report["on after"] = tries_until(lambda: store.put("T", BODY))
    return report | finish(store, mount, settings)


def dying(mount: Path, options: dict[str, Any]) -> None:
    """On a full disk a process puts keys, and messages of a new queue; then it is killed. Or it closes in order."""
    store = mqfast.open(mount / "store", **(SETTINGS | options["settings"]))
    for number in range(50):
        store.put("T", BODY, keys=f"old{number}")
    bodies(store)
    store.query("T", "old1")
    fill(mount)
    for number in range(50):
        store.put("T", BODY, keys=f"k{number} u{number}")
        store.put("New", BODY, keys=f"n{number}")
    print(json.dumps([bodies(store), bodies(store, "New"), len(store.query("T", "k49"))]), flush=True)
    if options["close"]:
        store.close()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit()


def left(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What such a process leaves is there after an open on the full disk, and whole once there is space."""
    settings = SETTINGS | {"maxIndexNum": 70, **options["settings"]}  # some keys have an index file that is full
    given = json.dumps({"close": options["close"], "settings": {"maxIndexNum": 70, **options["settings"]}})
    died = subprocess.run([sys.executable, __file__, "dying", str(mount), given], capture_output=True, text=True)
    report: dict[str, Any] = {"died": [died.returncode, died.stdout.strip()], "errors": died.stderr[-500:]}
    report["abort"] = (mount / "store" / "abort").exists()
    for _ in range(2):
        store = mqfast.open(mount / "store", **settings)
        report["full"] = [bodies(store), str(store.state)]
        report["refused"] = until_refused(functools.partial(store.put, "New", BODY), 1)[1:]
        report["closed"] = outcome(store.close)
    store = mqfast.open(mount / "store", **settings)
    free(mount)
    report["on after"] = tries_until(lambda: _want(bodies(store, "New"), 50))
    report["place"] = store.put("New", BODY).queue_offset
    tries_until(lambda: _want(len(store.query("New", "n49")), 1))
    keys = [("T", f"{what}{n}") for what in ("old", "k", "u") for n in range(50)] + [
        ("New", f"n{n}") for n in range(50)
    ]
    report["missing"] = [key for topic, key in keys if len(store.query(topic, key)) != 1]
    report["messages"] = [bodies(store), bodies(store, "New")]
    return report | finish(store, mount, settings)


def sparse(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """A copy whose files have holes, of a store that was closed or killed, on a disk that runs full."""
    settings = SETTINGS | {"maxIndexNum": 200_000, **options["settings"]}
    made = mount.with_name("made")
    with mqfast.open(made, **settings) as store:
        for number in range(100):
            store.put("T", BODY, keys=f"k{number}")
        store.put("T", bytes(200_000))
    if options["killed"]:
        (made / "abort").write_text("1")
    subprocess.run(["cp", "-a", "--sparse=always", str(made), str(mount / "store")], check=True)
    fill(mount, leave_bytes=3 << 20)
    store = mqfast.open(mount / "store", **settings)
    put = until_refused(lambda: store.put("T", BODY, keys="k"), 100_000)
    report: dict[str, Any] = {"put": put, "state": str(store.state), "flush": outcome(store.flush)}
    report["waits"] = store.stats()["waits_for_space"]
    report["get"] = len(store.get("T", 0, 0, 100)), len(store.query("T", "k7"))
    free(mount)
    report["on after"] = tries_until(lambda: store.put("T", b"after", keys="after"))
    tries_until(lambda: _want(len(store.query("T", "after")), 1))
    report["end"] = store.max_offset("T", 0)
    report["close"] = outcome(store.close)
    checked = mqfast.verify(mount / "store")
    report["verify"] = [checked.state, [str(damage) for damage in checked.damages]]
    return report | {"lost pages": lost_page_count()}


def churn(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The disk is full and is not, in turn, while everything is done with a store; its readers never see an error."""
    rng = random.Random(options["seed"])
    settings = SETTINGS | {"mappedFileSizeCommitLog": 1 << 20, "maxIndexNum": 3000, **options["settings"]}
    store = mqfast.open(mount / "store", **settings)
    sent: dict[str, list[int]] = {}
    kept: dict[tuple[str, int], str] = {}
    report: dict[str, Any] = {"refused": 0, "waited": 0, "reopened": 0, "wrong": []}

    def check(whole: bool) -> None:
        for topic, numbers in sent.items():
            found: list[int] = []
            while len(got := store.get(topic, 0, len(found), 100)):
                found += [int(body[:8]) for body in got.bodies()]
            if found != (numbers if whole else numbers[: len(found)]):
                report["wrong"].append(f"{topic}: {len(found)} of {len(numbers)} messages, or others")

    for number in range(400):
        dice = rng.random()
        if dice < 0.85:
            topic = f"T{min(rng.randrange(12), rng.randrange(12))}"
            key = f"key{number}" if rng.random() < 0.6 else None
            try:
                store.put(topic, b"%08d" % number + bytes(rng.choice((10, 1000, 20_000))), keys=key)
            except mqfast.errors.DiskFull:
                report["refused"] += 1
                continue
            sent.setdefault(topic, []).append(number)
            if key is not None:
                kept[topic, number] = key
        elif dice < 0.9:
            fill(mount, leave_bytes=rng.choice((0, 0, 4096, 100_000, 600_000)))
        elif dice < 0.93:
            (mount / "filler").unlink(missing_ok=True)
        elif dice < 0.97:
            check(False)
            report["waited"] += len(store.stats()["waits_for_space"]) > 0
            store.query("T0", f"key{number - 1}")
            store.consumer_offsets.commit("group", "T0", 0, 1)
        else:
            store.close()
            store = mqfast.open(mount / "store", **settings)
            report["reopened"] += 1
    (mount / "filler").unlink(missing_ok=True)
    tries_until(lambda: _want(str(store.state) == "open", True))
    check(True)
    tries_until(lambda: _want([key for (topic, _), key in kept.items() if len(store.query(topic, key)) != 1], []))
    report["close"] = outcome(store.close)
    checked = mqfast.verify(mount / "store")
    report["verify"] = [checked.state, [str(damage) for damage in checked.damages]]
    return report | {"lost pages": lost_page_count(), "sent": sum(map(len, sent.values()))}


NEIGHBOUR = """
import os, sys
path, go, size, failed, written = sys.argv[1], sys.argv[2], int(sys.argv[3]), 0, 0
print("ready", flush=True)
while os.path.exists(go):
    try:
        with open(path, "wb") as file:
            file.write(bytes(size))
            file.flush()
            os.fsync(file.fileno())
        written += 1
    except OSError:
        failed += 1
    if os.path.exists(path):
        os.unlink(path)
print(written, failed, flush=True)
"""


def neighbour(mount: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Another program writes and removes a file in a loop while everything of a store waits for space."""
    settings = SETTINGS | {"flushConsumerOffsetInterval": 20, "preallocate_files": 2} | options["settings"]
    store = mqfast.open(mount / "store", **settings)
    for number in range(20):
        store.put("T", BODY, keys=f"k{number}")
    tries_until(lambda: _want(len(store.query("T", "k19")), 1))
    fill(mount, leave_bytes=options["leave"])
    go = mount.with_name("go")
    go.touch()
    command = [sys.executable, "-c", NEIGHBOUR, str(mount / "file"), str(go), str(options["bytes"])]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    until = time.monotonic() + options["seconds"]
    refused = put = 0
    while time.monotonic() < until or not refused:
        for topic in ("T", f"New{put % 200}")[: options["topics"]]:
            try:
                store.put(topic, BODY, keys=f"n{put}")
                put += 1
            except mqfast.errors.DiskFull:
                refused += 1
        # A bounded number of groups: one for each put would fill the disk with offsets.
        for number in range(20):
            store.consumer_offsets.commit(f"group{put % 20}-{number}{'x' * 100}", "T", 0, put)
    report: dict[str, Any] = {"put": put, "refused": refused, "waits": store.stats()["waits_for_space"]}
    go.unlink()
    report["written"], report["failed"] = map(int, other.stdout.read().split())
    assert other.wait() == 0
    free(mount)
    report["on after"] = tries_until(lambda: store.put("T", BODY))
    report["state after"] = tries_until(lambda: _want(str(store.state), "open"))
    store.close()
    return report | finish(mqfast.open(mount / "store", **settings), mount, settings)


def main() -> None:
    """Run the scenario that the arguments name on a mounted filesystem."""
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]), json.loads(sys.argv[3]))), flush=True)


if __name__ == "__main__":
    main()

"""The stores that are damaged: each a set of files in memory, and what an undamaged reader sees in them.

Room: tests. It must never hand out a golden directory for writing, and never keep what it knows of a store anywhere
but in memory. File formats: ``mqfast/store/FORMAT.md``; what the golden stores are: ``tests/golden/README.md``.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import mqfast
from mqfast.config import StoreConfig
from mqfast.message import Message
from mqfast.store.base.os_api import OsApi

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from laboratory import open_still

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden"
# Small enough that hundreds of images can be tried in a second; between them they hold every kind of file.
GOLDEN_NAMES: Final = ("batch-cq", "cq-ext", "ipv6", "killed", "lmq", "prop-crc", "timer", "version2-topic")
NOW_MS: Final = 1_700_000_000_000
_SEEDS_OF_A_STORE: Final = 4096
Place = tuple[str, int, int]
Image = dict[str, bytes]


@dataclass
class Base:
    """One store: its files, how it is opened, and what it holds."""

    name: str
    files: Image
    settings: dict[str, Any]
    records: dict[int, bytes] = field(default_factory=dict)
    """Physical offset -> the whole record."""
    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """(topic, queue id) -> (min offset, max offset)."""
    places: dict[Place, int] = field(default_factory=dict)
    """(topic, queue id, queue offset) -> physical offset."""
    keys: list[tuple[str, str, frozenset[int]]] = field(default_factory=list)
    """(topic, key, physical offsets of the messages that carry it)."""

    @functools.cached_property
    def config(self) -> StoreConfig:
        """The settings, checked once."""
        return StoreConfig.from_kwargs(**self.settings)

    @property
    def property_crc(self) -> bool:
        """Does every record carry a checksum of the whole record that recovery checks?"""
        return self.config.force_verify_prop_crc


def files_below(root: str) -> Image:
    """Relative name -> bytes of every file below a directory."""
    found: Image = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


def write_files(root: str, files: Image) -> None:
    """Make a directory hold exactly these files."""
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    for name, data in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def _look_around(base: Base, scratch: str) -> Base:
    """Fill in what an undamaged reader sees."""
    root = os.path.join(scratch, base.name)
    write_files(root, base.files)
    with mqfast.StoreReader(root) as reader:
        for message in reader.scan():
            base.records[message.physical_offset] = message.to_bytes()
        carriers: dict[tuple[str, str], set[int]] = {}
        for row in reader.queues():
            base.queues[row.topic, row.queue_id] = (row.min_offset, row.max_offset)
            for message in reader.messages(row.topic, row.queue_id):
                base.places[row.topic, row.queue_id, message.queue_offset] = message.physical_offset
        for (topic, _, _), physical in base.places.items():
            found = reader.get_by_offset(physical)
            unique = found.properties.get("UNIQ_KEY")
            for key in [*found.keys, *([unique] if unique else [])]:
                carriers.setdefault((topic, key), set()).add(physical)
        for (topic, key), physical_offsets in sorted(carriers.items())[:: max(1, len(carriers) // 4)][:4]:
            base.keys.append((topic, key, frozenset(physical_offsets)))
    shutil.rmtree(root)
    return base


def _settings(**more: Any) -> dict[str, Any]:
    return {
        "mapped_file_bytes_commit_log": 4096,
        "mapped_file_bytes_consume_queue": 200,
        "mapped_file_bytes_batch_consume_queue": 230,
        "max_hash_slot_num": 8,
        "max_index_num": 20,
        "max_message_bytes": 2048,
        "prefault_window_bytes": 0,
        "preallocate_files": 0,
        "born_host": "127.0.0.1:10911",
        "store_host": "127.0.0.1:10911",
        **more,
    }


def _fill(store: mqfast.MessageStore, os_api: OsApi, count: int) -> None:
    now = NOW_MS
    for i in range(count):
        now += 700
        os_api.fix_clock(now)
        topic = ("orders", "events", "a")[i % 3]
        # Many of one length, so that a damaged unit may well hit the start of another record of its size.
        body = b"%03d" % i * (7, 7, 7, 0, 90)[i % 5]
        if i % 11 == 10:
            store.put_batch([Message(topic, body + b"%d" % n, queue_id=i % 2, keys=f"b{i}") for n in range(3)])
        else:
            store.put(topic, body, i % 2, tags=("red", "green")[i % 2], keys=f"k{i % 7} u{i}" if i % 2 else None)


def _made(name: str, scratch: str, *, killed: bool = False, count: int = 36, **more: Any) -> Base:
    """Write a store with the engine itself, with a clock that stands."""
    root = os.path.join(scratch, "making")
    shutil.rmtree(root, ignore_errors=True)
    os_api = OsApi()
    os_api.fix_clock(NOW_MS)
    settings = _settings(**more)
    store = open_still(root, os_api=os_api, **settings)
    _fill(store, os_api, count // 2)
    consumer = store.consumer("readers", "orders")
    for _ in consumer.poll():
        pass
    consumer.commit()
    store.close()
    store = open_still(root, os_api=os_api, **settings)
    _fill(store, os_api, count - count // 2)
    store.flush()
    files: Image = {}
    if killed:
        store.max_offset("orders", 0)  # dispatches what was put
        files = files_below(root)
    store.close()
    base = Base(name, files if killed else files_below(root), settings)
    shutil.rmtree(root)
    # The file is as long as a process id; every run of the same seed must meet the same bytes.
    for mark in ("abort", "lock"):
        if base.files.get(mark):
            base.files[mark] = b"12345"
    return _look_around(base, scratch)


def _small(name: str, scratch: str, rng: random.Random, *, killed: bool = False, **more: Any) -> Base:
    """About two log files and two queues, of which one has two files: the least that has every border."""
    root = os.path.join(scratch, "making")
    shutil.rmtree(root, ignore_errors=True)
    os_api = OsApi()
    settings = _settings(
        **{
            "mapped_file_bytes_commit_log": rng.choice((768, 1024, 1536, 4096)),
            "mapped_file_bytes_consume_queue": rng.choice((60, 80, 100, 400)),
            "mapped_file_bytes_batch_consume_queue": rng.choice((92, 138, 460)),
            "max_hash_slot_num": rng.choice((1, 2, 4, 16)),
            "max_index_num": rng.choice((3, 4, 6, 20)),
            "max_message_bytes": 512,
            "born_host": rng.choice(("127.0.0.1:10911", "127.0.0.1:10911", "[::1]:1")),
            **more,
        }
    )
    one, two = rng.choice((("orders", "a"), ("orders", "orders"), ("T", "a-topic-of-many-characters"), ("a", "b")))
    places = [(one, rng.choice((0, 0, 1))), (one, 0), (two, rng.choice((1, 2, 11)))]
    # Two lengths only, so that a damaged unit may well hit the start of another record of its size.
    sizes = rng.choices((0, 1, 8, 24, 60, 100), k=2)
    count, step, keyed = rng.randint(5, 9), rng.choice((1, 700, 2500)), rng.randint(1, 3)
    log_queues = "%LMQ%x,%LMQ%y" if more.get("enable_lmq") else None
    files: Image = {}
    for first, stop in ((0, count // 2), (count // 2, count)):
        store = open_still(root, os_api=os_api, **settings)
        if name == "small-batch":
            store.topic_table.ensure(one, 4, attributes={"queue.type": "BatchCQ"})
        for i in range(first, stop):
            os_api.fix_clock(NOW_MS + step * i)
            body = rng.randbytes(rng.choice(sizes))
            store.put(
                *places[i % 3][:1],
                body,
                places[i % 3][1],
                tags=rng.choice(("red", "green", None)),
                keys=f"k{i % 3}" if i % keyed == 0 else None,
                properties={"INNER_MULTI_DISPATCH": log_queues} if log_queues and i % 2 else None,
            )
        store.flush()
        if killed:
            store.max_offset(one, 0)  # dispatches what was put
            files = files_below(root)
        else:
            consumer = store.consumer("readers", two)
            for _ in consumer.poll():
                pass
            consumer.commit()
        store.close()
    base = Base(name, files or files_below(root), settings)
    shutil.rmtree(root)
    for mark in ("abort", "lock"):
        if base.files.get(mark):
            base.files[mark] = b"12345"
    return _look_around(base, scratch)


def make_small_bases(number: int) -> list[Base]:
    """Stores for long runs: a tenth of the size of the others, held to the same rule; other ones for every number."""
    rng = random.Random(number)
    checked = {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="mqfast-bases-", dir=shm) as scratch:
        return [
            _small("small", scratch, rng),
            _small("small-killed", scratch, rng, killed=True),
            _small("small-checked", scratch, rng, killed=number % 2 == 1, **checked),
            _small("small-lmq", scratch, rng, killed=number % 2 == 0, enable_lmq=True, enable_multi_dispatch=True),
            _small("small-batch", scratch, rng, killed=number % 3 == 0),
        ]


class Bases:
    """The stores that a seed is drawn from: always the same ones, or small ones that change after some thousand."""

    def __init__(self, fixed: list[Base] | None = None) -> None:
        self._fixed = fixed
        self._number = -1
        self._small: list[Base] = []

    def of(self, seed: int) -> list[Base]:
        """The stores of one seed."""
        if self._fixed is not None:
            return self._fixed
        if self._number != seed // _SEEDS_OF_A_STORE:
            self._number = seed // _SEEDS_OF_A_STORE
            self._small = make_small_bases(self._number)
        return self._small


def _golden(name: str, scratch: str) -> Base:
    import json

    folder = GOLDEN / "golden-5.3.3" / name
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    files = files_below(str(folder / "store"))
    settings = {**expected["settings"], "prefault_window_bytes": 0, "preallocate_files": 0}
    return _look_around(Base(f"golden-{name}", files, settings), scratch)


def make_bases(names: tuple[str, ...] = ()) -> list[Base]:
    """All stores, or those whose name is given; the same bytes every time."""
    makers: dict[str, Any] = {
        "clean": lambda s: _made("clean", s),
        "killed": lambda s: _made("killed", s, killed=True),
        "checked": lambda s: _made("checked", s, enabled_append_prop_crc=True, force_verify_prop_crc=True),
        "one-file": lambda s: _made(
            "one-file", s, count=12, mapped_file_bytes_commit_log=16384, mapped_file_bytes_consume_queue=1000
        ),
        **{f"golden-{name}": (lambda s, name=name: _golden(name, s)) for name in GOLDEN_NAMES},
    }
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="mqfast-bases-", dir=shm) as scratch:
        return [make(scratch) for name, make in makers.items() if not names or name in names]

"""The stores that are damaged: each a set of files in memory, and what an undamaged reader sees in them.

Room: tests. It must never hand out a golden directory for writing, and never keep what it knows of a store anywhere
but in memory. File formats: ``mqfast/store/FORMAT.md``; what the golden stores are: ``tests/golden/README.md``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import mqfast
from mqfast.message import Message
from mqfast.store._os import OsDoor

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden"
# Small enough that hundreds of images can be tried in a second; between them they hold every kind of file.
GOLDEN_NAMES: Final = ("batch-cq", "cq-ext", "ipv6", "killed", "lmq", "prop-crc", "timer", "version2-topic")
NOW_MS: Final = 1_700_000_000_000
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

    @property
    def property_crc(self) -> bool:
        """Does every record carry a checksum of the whole record that recovery checks?"""
        return bool(self.settings.get("force_verify_prop_crc"))


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
            found = reader.look(physical)
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


def _fill(store: mqfast.MessageStore, door: OsDoor, count: int) -> None:
    now = NOW_MS
    for i in range(count):
        now += 700
        door.fix_clock(now)
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
    door = OsDoor()
    door.fix_clock(NOW_MS)
    settings = _settings(**more)
    store = mqfast.open(root, door=door, _start_services=False, **settings)
    _fill(store, door, count // 2)
    consumer = store.consumer("readers", "orders")
    for _ in consumer.poll():
        pass
    consumer.commit()
    store.close()
    store = mqfast.open(root, door=door, _start_services=False, **settings)
    _fill(store, door, count - count // 2)
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


def _golden(name: str, scratch: str) -> Base:
    import json

    folder = GOLDEN / "golden-5.3.3" / name
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    files = files_below(str(folder / "store"))
    settings = {**expected["settings"], "prefault_window_bytes": 0, "preallocate_files": 0}
    if name == "prop-crc":
        settings["force_verify_prop_crc"] = True
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

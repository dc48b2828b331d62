"""The rule that damage is held to, checked on one damaged store.

Whatever the damage: every call ends, with a result or with an error of ``mqfast.errors``; and

* a message that a reader hands out is one that was put, in its queue and at its offset. Only what no checksum of the
  format covers may differ in it (everything but the body, unless the store carries the checksum property);
* ``StoreReader`` checks bodies. So does recovery in what it walks, and ``look``; ``get`` of the writing store trusts
  what recovery did not walk, and verify finds damage there;
* when a reader does not hand out everything, something said so: an error, or a finding of verify;
* after an open the store takes new messages, hands them out, and a second open changes nothing.

Room: tests. It must never repair what it checks. What a promise means: ``docs/durability.md``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mqfast
from mqfast.errors import InternalError, MqfastError, StorageError
from mqfast.store.check.verify import verify

from .mutations import Damage, mutate
from .stores import Bases, Place

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from laboratory import lab, open_still

_MOST = 500  # calls of one loop: far above what any of the stores holds


class Wrong(Exception):
    """The rule does not hold."""


class Workplace:
    """A directory a base, which holds the damaged store of the moment and is put right again for the next one."""

    def __init__(self, root: str, bases: Bases, *, full: bool = True) -> None:
        self.root = root
        self.full = full
        self.bases = bases
        self.counts: Counter[str] = Counter()
        self._read: dict[str, Damage] = {}  # directory -> what was damaged in it last

    def run(self, seed: int) -> None:
        """Check one seed. Raises: Wrong."""
        damage = mutate(self.bases.of(seed), seed)
        read, write = self.full or seed % 4 < 2, self.full or seed % 4 > 1
        root = f"{self.root}/{damage.base.name}-{'written' if write else 'read'}"
        known = None if write else self._read.pop(root, None)
        if known is not None and known.base is damage.base and seed % 64:
            # Nobody writes there but us: only what was damaged last is put right.
            _put_right(root, damage, {*known.changed, *known.directories, "abort"})
        else:
            _set_up(root, damage)
        _Check(root, damage, self.counts).run(read=read, write=write)
        self.counts["mutations"] += 1
        if not write:
            self._read[root] = damage


def _set_up(root: str, damage: Damage) -> None:
    """Make a directory hold what the damage leaves, whatever was there."""
    wanted = {name: data for name, data in {**damage.base.files, **damage.changed}.items() if data is not None}
    os.makedirs(root, exist_ok=True)
    _remove_all_but(wanted, root, "")
    for name, data in wanted.items():
        _write(f"{root}/{name}", data)
    _make_directories(root, damage)


def _put_right(root: str, damage: Damage, touched: set[str]) -> None:
    """Make a directory hold what the damage leaves; it holds the undamaged store but for these names."""
    for name in touched | damage.changed.keys():
        path = f"{root}/{name}"
        data = damage.changed[name] if name in damage.changed else damage.base.files.get(name)
        if os.path.isdir(path):
            os.rmdir(path)
        if data is not None:
            _write(path, data)
            continue
        if os.path.exists(path):
            os.unlink(path)
        folder = os.path.dirname(path)
        while folder != root and os.path.isdir(folder) and not os.listdir(folder):
            os.rmdir(folder)
            folder = os.path.dirname(folder)
    _make_directories(root, damage)


def _make_directories(root: str, damage: Damage) -> None:
    for name in damage.directories:
        if damage.changed.get(name) is None:
            os.makedirs(f"{root}/{name}", exist_ok=True)


def _remove_all_but(wanted: dict[str, bytes], folder: str, prefix: str) -> bool:
    """Remove other files, and directories that are empty then. Returns: is anything left."""
    left = False
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if _remove_all_but(wanted, entry.path, name + "/"):
                    left = True
                else:
                    os.rmdir(entry.path)
            elif name in wanted:
                left = True
            else:
                os.unlink(entry.path)
    return left


def _write(path: str, data: bytes) -> None:
    """Make a file hold these bytes; it is written only where it does not."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.pread(number, len(data) + 1, 0) != data:
            os.ftruncate(number, 0)
            os.pwrite(number, data, 0)
    finally:
        os.close(number)


class _Check:
    def __init__(self, root: str, damage: Damage, counts: Counter[str]) -> None:
        self.root = root
        self.damage = damage
        self.base = damage.base
        self.counts = counts
        self.errors = 0
        self.added: dict[int, bytes] = {}
        self.added_places: dict[Place, int] = {}
        self.moved: tuple[str, Place] | None = None
        self.log_changed = any(name.startswith("commitlog/") for name in damage.changed)

    # --- calls ---

    def attempt(self, call: Callable[[], Any]) -> Any:
        """The result, or None after an error of ours."""
        try:
            return call()
        except InternalError as error:
            raise Wrong(f"one of our own rules does not hold: {error!r}") from error
        except MqfastError as error:
            if not str(error):
                raise Wrong(f"an error without words: {error!r}") from error
            self.errors += 1
            return None

    # --- messages ---

    def judge(self, message: Any, where: str, place: Place | None, *, body_checked: bool, walked: bool = False) -> None:
        """Is it a message that was put? Raises: Wrong."""
        physical = message.physical_offset
        raw = message.to_bytes()
        body = bytes(message.body)
        known = self.added.get(physical)
        if known is None or known != raw:
            known = self.base.records.get(physical, known)
        if known is None:
            raise Wrong(f"{where}: a message at {physical} that was never put: {raw[:120]!r}")
        if raw == known:
            if place is not None:
                self.judge_place(message, where, place)
            return
        self.counts["altered"] += 1
        if not self.log_changed:
            raise Wrong(f"{where}: the message at {physical} differs although the log was not touched")
        if not body_checked:
            self.counts["unchecked"] += 1
            return
        if self.base.property_crc and walked:
            raise Wrong(f"{where}: the message at {physical} differs although the whole record is checked")
        if body != _body_of(known):
            # A file in the place of another one, and the offset that a record says of itself changed to fit.
            if any(raw[:28] == other[:28] and raw[36:] == other[36:] for other in self.base.records.values()):
                self.counts["forged place"] += 1
                return
            raise Wrong(f"{where}: the message at {physical} has another body: {body[:80]!r}")

    def judge_place(self, message: Any, where: str, place: Place) -> None:
        """Is a message whose bytes are whole where it was put? Raises: Wrong."""
        physical = message.physical_offset
        if physical in (self.added_places.get(place), self.base.places.get(place)):
            return
        topic, queue_id, offset = place
        claimed = message.offset_in(topic.encode(), queue_id)
        # The header of a record before it says another queue, so the queue made anew has one unit less from there on.
        if self.log_changed and claimed is not None and (claimed > offset or claimed == 0):
            self.counts["moved down"] += 1
            return
        # A unit that points at a later record of its queue looks like one of a queue that once lost units, unless the
        # unit of that record is whole; a record that claims place 0 is taken anywhere, as RocketMQ does. With several
        # damaged units either may pass: verify sees it.
        if claimed is not None and (claimed > offset or claimed == 0) and self.damaged_units(topic, queue_id) > 1:
            self.counts["moved down"] += 1
            self.moved = (where, place)
            return
        # Put while its queue had lost all its units, it claims place 0 too; when the checkpoint is lost as well, the
        # next open makes the queue anew, and a record that claims place 0 is taken behind the old ones.
        if (
            claimed == 0
            and self.added_places.get((topic, queue_id, 0)) == physical
            and self.damaged_units(topic, queue_id) == self.base.queues[topic, queue_id][1]
        ):
            self.counts["moved up"] += 1
            return
        raise Wrong(f"{where}: {place} is the message at {self.base.places.get(place)}, got the one at {physical}")

    def damaged_units(self, topic: str, queue_id: int) -> int:
        """How many units of a queue the damage changed."""
        count = 0
        folder = f"consumequeue/{topic}/{queue_id}/"
        for name in self.damage.changed:
            if name.startswith(folder):
                old, new = self.base.files.get(name, b""), self.damage.data(name)
                count += sum(old[at : at + 20] != new[at : at + 20] for at in range(0, max(len(old), len(new)), 20))
        return count

    def read_queue(self, get: Callable[[int], Any], low: int, high: int, judge: Callable[[Any, int], None]) -> set[int]:
        """Get from ``low`` on until the end; go on behind what is damaged. Returns: the physical offsets got."""
        got: set[int] = set()
        refused: set[int] = set()
        at, calls = low, 0
        while at < high:
            calls += 1
            if calls > _MOST:
                break  # a damaged bound: nobody walks a billion places; each call moved on
            result = self.attempt(lambda at=at: get(at))
            if result is None:
                refused.add(at)
                at += 1
                continue
            for message in result:
                judge(message, message.queue_offset)
                got.add(message.physical_offset)
            if result.next_offset <= at:
                # Nothing more to come, and no error, not even where it leads back to: a consumer would ask for ever.
                if result.next_offset not in refused and result.status.name not in (
                    "NO_MATCHED_LOGIC_QUEUE",
                    "NO_MESSAGE_IN_QUEUE",
                    "OFFSET_TOO_SMALL",
                ):
                    raise Wrong(f"get at {at} of {low} to {high} says {result.status.name} and does not move on")
                break
            at = result.next_offset
        return got

    # --- the reader ---

    def reader(self) -> set[int] | None:
        """Everything a reader can say. Returns: what it handed out through queues, None when it cannot be opened."""
        reader = self.attempt(lambda: mqfast.StoreReader(self.root))
        if reader is None:
            return None
        got: set[int] = set()
        with reader:
            self.attempt(lambda: reader.log_range())
            rows = {(row.topic, row.queue_id): row[2:] for row in self.attempt(reader.queues) or ()}
            for topic, queue_id in {**rows, **self.base.queues}:
                span = rows.get((topic, queue_id))
                if span is None:  # one damaged queue can keep the list of all from being made
                    span = self.attempt(
                        lambda t=topic, q=queue_id: (reader.min_offset(t, q), reader.max_offset(t, q))
                    ) or self.base.queues.get((topic, queue_id), (0, 0))
                got |= self.read_queue(
                    lambda at, t=topic, q=queue_id: reader.get(t, q, at, 16),
                    *span,
                    lambda m, at, t=topic, q=queue_id: self.judge(m, "reader.get", (t, q, at), body_checked=True),
                )
                self.attempt(lambda t=topic, q=queue_id: reader.offset_by_time(t, q, 1_700_000_010_000))

            def scan() -> None:
                for count, message in enumerate(reader.scan()):
                    self.judge(message, "reader.scan", None, body_checked=True)
                    if count > _MOST:
                        raise Wrong("a scan does not end")

            self.attempt(scan)
            for physical in self.base.records:
                message = self.attempt(lambda p=physical: reader.get_by_offset(p))
                if message is not None:
                    self.judge(message, "reader.look", None, body_checked=True)
            for topic, key, _ in self.base.keys:
                for message in self.attempt(lambda t=topic, k=key: reader.query(t, k)) or ():
                    self.judge(message, "reader.query", None, body_checked=True)
                    if not self.log_changed and (message.topic != topic or key not in _keys(message)):
                        raise Wrong(f"reader.query({topic}, {key}) gave {message!r}")
            self.attempt(lambda: reader.checkpoint)
            self.attempt(lambda: reader.consumer_offsets("readers"))
        return got

    # --- the store ---

    def opened(self) -> mqfast.MessageStore | None:
        store: mqfast.MessageStore | None = self.attempt(lambda: open_still(self.root, config=self.base.config))
        return store

    def read_store(self, store: mqfast.MessageStore) -> dict[tuple[str, int], set[int]]:
        """Everything the store can say. Returns: queue -> the physical offsets it handed out."""
        got: dict[tuple[str, int], set[int]] = {}
        walked = store.recovery.start
        checked = store.config.check_crc_on_recover

        def judge(message: Any, at: int, topic: str, queue_id: int) -> None:
            inside = checked and message.physical_offset >= walked
            self.judge(message, "get", (topic, queue_id, at), body_checked=inside, walked=inside)

        for topic, queue_id, low, high in self.attempt(store.queues) or ():
            got[topic, queue_id] = self.read_queue(
                lambda at, t=topic, q=queue_id: _read(store.get(t, q, at, 16)),
                low,
                high,
                lambda m, at, t=topic, q=queue_id: judge(m, at, t, q),
            )
            self.attempt(lambda t=topic, q=queue_id: store.offset_by_time(t, q, 1_700_000_010_000))
            self.attempt(lambda t=topic, q=queue_id, low=low: store.get(t, q, low, 4, tags="red || PA"))
        for physical in self.base.records:
            message = self.attempt(lambda p=physical: store.get_by_offset(p))
            if message is not None:
                self.judge(message, "look", None, body_checked=True)
        for topic, key, _ in self.base.keys:
            for message in self.attempt(lambda t=topic, k=key: store.query(t, k)) or ():
                self.judge(message, "query", None, body_checked=False)
                if not self.log_changed and (message.topic != topic or key not in _keys(message)):
                    raise Wrong(f"query({topic}, {key}) gave {message!r}")
        self.attempt(lambda: store.consumer("readers", "orders").poll())
        return got

    def put(self, store: mqfast.MessageStore) -> None:
        """The store takes a message in every queue and hands it out."""
        for topic, queue_id in [*list(self.base.queues)[:2], ("new topic".replace(" ", "-"), 0)]:
            if topic.startswith("%LMQ%") or lab(store).queues.is_batch(topic):
                continue
            body = f"new {topic} {queue_id}".encode()
            result = self.attempt(lambda t=topic, q=queue_id, b=body: store.put(t, b, q, keys="new"))
            if result is None:
                continue
            try:
                message = store.get_by_offset(result.physical_offset)
            except StorageError:
                continue  # the queue cannot be written, and says so
            if bytes(message.body) != body:
                raise Wrong(f"put to {topic}/{queue_id} at {result.physical_offset} cannot be looked up")
            self.added[result.physical_offset] = message.to_bytes()
            self.added_places[topic, queue_id, result.queue_offset] = result.physical_offset
            found = self.attempt(lambda t=topic, q=queue_id, o=result.queue_offset: store.get(t, q, o, 1))
            if found is not None and [bytes(m.body) for m in found] != [body]:
                raise Wrong(
                    f"put to {topic}/{queue_id} gave queue offset {result.queue_offset}; get there says {found!r}"
                )
        self.attempt(store.stats)

    # --- all of it ---

    def run(self, *, read: bool, write: bool) -> None:
        """Args: read: by StoreReader and verify; write: by opening the store. Raises: Wrong."""
        rng_abort = self.damage.seed % 3
        mark = os.path.join(self.root, "abort")
        if "abort" not in self.damage.changed:
            if rng_abort == 1 and os.path.isfile(mark):
                os.unlink(mark)
            elif rng_abort == 2 and not os.path.exists(mark):
                with open(mark, "wb") as file:
                    file.write(b"1")
        if read:
            self._read()
        if write:
            self._store(set(self.base.places.values()))

    def _read(self) -> None:
        got = self.reader()
        report = self.attempt(lambda: verify(self.root, threads=1))
        everything = set(self.base.places.values())
        if self.moved is not None and report is not None and not report.damages:
            raise Wrong(f"{self.moved} is another message of its queue and verify does not say so")
        silent = self.errors == 0 and report is not None and not report.damages
        if silent and got is not None and got != everything:
            raise Wrong(f"the reader lacks {sorted(everything - got)[:5]} and nobody says so")
        self.counts["harmless" if silent else "detected"] += 1

    def _store(self, everything: set[int]) -> None:
        store = self.opened()
        if store is None:
            self.counts["not opened"] += 1
            return
        self.counts["opened"] += 1
        try:
            before = self.errors
            first = self.read_store(store)
            whole = self.errors == before
            self.put(store)
        finally:
            self.attempt(store.close)
        if os.path.exists(os.path.join(self.root, "abort")):
            self.counts["closed with abort"] += 1
        handed = set().union(*first.values()) if first else set()
        if not self.log_changed and not everything <= handed:
            self.counts["units lost"] += 1
            if whole:
                report = self.attempt(lambda: verify(self.root, threads=1))
                if report is not None and not report.damages:
                    raise Wrong(f"after the open {sorted(everything - handed)[:5]} are gone and nobody says so")
        again = self.opened()
        if again is None:
            if self.damage.directories:
                return  # a directory stands where a file has to be made: each open says so
            raise Wrong("the second open fails")
        try:
            second = self.read_store(again)
        finally:
            self.attempt(again.close)
        for queue, offsets in first.items():
            lost = offsets - second.get(queue, set())
            # The header of a damaged record may say a queue offset that keeps later ones out of a queue made anew.
            if lost and not self.log_changed:
                raise Wrong(f"a second open lost {sorted(lost)[:5]} of {queue}")
        for (topic, queue_id, _), physical in self.added_places.items():
            if not self.log_changed and physical not in second.get((topic, queue_id), set()):
                raise Wrong(f"a second open lost the new message at {physical} of {topic}/{queue_id}")


def _read(result: Any) -> Any:
    result.bodies()
    return result


def _keys(message: Any) -> list[str]:
    unique = message.properties.get("UNIQ_KEY")
    return [*message.keys, *([unique] if unique else [])]


def _body_of(record: bytes) -> bytes:
    sys_flag = int.from_bytes(record[36:40], "big")
    at = 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    return record[at : at + int.from_bytes(record[at - 4 : at], "big")]


def clear(root: str) -> None:
    """Remove a workplace."""
    shutil.rmtree(root, ignore_errors=True)

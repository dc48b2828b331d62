"""A slave whose log is of another history than its master's: found wherever both part, marked, and cut where told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from ha.pairs import FILE as PAIR_FILE
from ha.pairs import QUICK, as_slave, fill, following, log_of, put_up_to, serving, trimmed, until
from ha.pairs import SIZES as PAIR_SIZES
from ha.test_missing_bytes import java_master

import mqfast
from mqfast.ha.divergence import Divergence, load_divergence
from mqfast.ha.epoch_file import EpochFile
from mqfast.ha.slave import FollowState, HaSlave
from mqfast.ha.term_history import Term
from mqfast.store.base.os_api import OsApi

FILE = 4 << 20
SIZES: dict[str, Any] = {
    "mapped_file_bytes_commit_log": FILE,
    "mapped_file_bytes_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
LARGE = bytes(3 << 20)
"""A message that a producer sent to both masters; longer than any number of bytes that a slave may look at."""


class Side:
    """A store with its epochs, closed and opened as master and as slave."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def opened(
        self, role: Literal["ASYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    ) -> Iterator[tuple[mqfast.MessageStore, EpochFile]]:
        with mqfast.open(self.path, broker_role=role, **SIZES) as store:
            yield store, EpochFile.load(OsApi(), str(self.path))

    def writes(self, *bodies: bytes, epoch: int | None = None) -> int:
        """As a master that starts, stores messages and ends. Returns: where its log ended before."""
        with self.opened() as (store, epochs):
            end = store.engine.raw.end
            if epoch is None:
                epochs.begin_term(end, 0)
            else:
                epochs.begin(epoch, end, 0)
            for body in bodies:
                store.put("T", body, queue_id=0)
            return end

    @property
    def mark(self) -> Divergence | None:
        return load_divergence(OsApi(), str(self.path))


async def follow(slave: Side, master: Side, state: FollowState, *, asks: bool = True, **changes: Any) -> str:
    """Let one follow the other until it is in a state, and level where it transfers. Returns: its error."""
    with master.opened() as (ours, of_master), slave.opened("SLAVE") as (theirs, of_slave):
        async with serving(ours, epochs=of_master) as serves:
            bounds = lambda: (max(0, ours.engine.raw.min_offset), ours.engine.raw.end)  # noqa: E731
            with following(theirs, serves.port, bounds, of_slave, asks, **changes) as one:
                await until(lambda: one.status.state is state)
                if state is FollowState.TRANSFER:
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
                    assert log_of(theirs) == log_of(ours)
                return str(one.status.error)


def parted(tmp_path: Path) -> tuple[Side, Side, int]:
    """An old master with X and a large message, a promoted slave with Y and the same large message sent again."""
    old, new = Side(tmp_path / "old"), Side(tmp_path / "new")
    old.writes(*(b"common %d" % number for number in range(10)))
    asyncio.run(follow(new, old, FollowState.TRANSFER))
    common = old.writes(b"X of the old master", LARGE)
    assert new.writes(b"Y of the new master", LARGE, b"after", epoch=1) == common
    return old, new, common


@pytest.mark.parametrize("asks", [True, False])
def test_a_large_message_that_was_sent_to_both_hides_nothing(tmp_path: Path, asks: bool) -> None:
    """``asks``: by epochs; else by records, as with a master of RocketMQ."""
    old, new, common = parted(tmp_path)
    error = asyncio.run(follow(old, new, FollowState.DIVERGED, asks=asks))
    assert "differs from its master's at" in error
    mark = old.mark
    assert mark is not None
    assert mark.common == common
    assert mark.own_bytes > len(LARGE)
    with old.opened("SLAVE") as (store, _):
        assert b"X of the old master" in log_of(store), "nothing is cut by default"
    asyncio.run(follow(old, new, FollowState.TRANSFER, asks=asks, truncate_diverged=True))
    assert old.mark is None
    assert mqfast.verify(old.path).ok


def test_a_divergence_mark_is_shown_while_the_master_is_unreachable(tmp_path: Path) -> None:
    old, new, common = parted(tmp_path)
    asyncio.run(follow(old, new, FollowState.DIVERGED))
    with old.opened("SLAVE") as (store, epochs):
        status = HaSlave(store.engine.raw, QUICK, lambda: None, epochs=epochs).status
        assert status.state is FollowState.DIVERGED
        assert f"from physical offset {common} on" in str(status.error)


def test_messages_lost_in_a_power_cut_differ_from_later_ones_at_the_same_offsets(tmp_path: Path) -> None:
    """The master's log ends earlier after the cut, and goes on: its slave has bytes that no longer are the master's."""
    master, slave = Side(tmp_path / "m"), Side(tmp_path / "s")
    master.writes(b"common")
    end = master.writes(b"lost", b"lost too")
    asyncio.run(follow(slave, master, FollowState.TRANSFER))
    with master.opened("SLAVE") as (store, epochs):
        store.engine.raw.truncate_to(end)  # what the power cut took
        epochs.end_at(end)
    master.writes(b"another", LARGE)
    asyncio.run(follow(slave, master, FollowState.DIVERGED))
    assert slave.mark is not None
    assert slave.mark.common == end
    asyncio.run(follow(slave, master, FollowState.TRANSFER, truncate_diverged=True))


def test_a_slave_that_ran_as_a_master_by_mistake_is_found(tmp_path: Path) -> None:
    master, slave = Side(tmp_path / "m"), Side(tmp_path / "s")
    master.writes(b"common")
    asyncio.run(follow(slave, master, FollowState.TRANSFER))
    end = slave.writes(*(b"of nobody %d" % number for number in range(300)))
    master.writes(b"acknowledged")
    assert f"at {end}" in asyncio.run(follow(slave, master, FollowState.DIVERGED))


def test_a_foreign_writer_in_between_is_found_by_the_records(tmp_path: Path) -> None:
    """Neither RocketMQ nor an embedded store begins a term: the epochs of both logs agree, the last record does not."""
    master, slave = Side(tmp_path / "m"), Side(tmp_path / "s")
    master.writes(b"common")
    asyncio.run(follow(slave, master, FollowState.TRANSFER))
    with mqfast.open(slave.path, **SIZES) as store:
        end = store.engine.raw.end
        store.put("T", b"of an embedded store", queue_id=0)
    with master.opened() as (store, _):
        fill(store, 30)
    asyncio.run(follow(slave, master, FollowState.DIVERGED))
    assert slave.mark is not None
    assert slave.mark.common == end


def test_a_slave_has_the_terms_of_its_master_before_their_first_byte(tmp_path: Path) -> None:
    master, slave = Side(tmp_path / "m"), Side(tmp_path / "s")
    starts = [master.writes(b"x" * 1000 * number) for number in range(1, 6)]
    asyncio.run(follow(slave, master, FollowState.TRANSFER))
    terms = EpochFile.load(OsApi(), str(master.path)).terms
    assert [term.start for term in terms] == starts
    assert EpochFile.load(OsApi(), str(slave.path)).terms == terms

    async def flow() -> None:
        with master.opened() as (ours, of_master), slave.opened("SLAVE") as (theirs, of_slave):
            async with serving(ours, epochs=of_master) as serves:
                with following(theirs, serves.port, None, of_slave, True) as one:
                    await until(lambda: one.followed is not None)
                    of_master.begin(1, ours.engine.raw.end, 0)
                    serves.send_history()
                    await until(lambda: of_slave.last_epoch == 1)
                    ours.put("T", b"of epoch 1", queue_id=0)
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
            assert EpochFile.load(OsApi(), str(slave.path)).terms == of_master.terms

    asyncio.run(flow())


def test_a_term_without_a_message_comes_with_the_last_byte_before(tmp_path: Path) -> None:
    """A slave of a fail-over counts once its store has the newest epoch."""
    master, slave = Side(tmp_path / "m"), Side(tmp_path / "s")
    master.writes(b"common")
    asyncio.run(follow(slave, master, FollowState.TRANSFER))
    master.writes(b"more")
    master.writes(epoch=1)
    asyncio.run(follow(slave, master, FollowState.TRANSFER))
    assert EpochFile.load(OsApi(), str(slave.path)).last_epoch == 1


def test_a_master_with_an_older_epoch_is_not_followed(tmp_path: Path) -> None:
    old, new, _ = parted(tmp_path)
    assert "which was replaced: expected at least 1, found 0" in asyncio.run(_refused(new, old))
    assert new.mark is None, "the old master is the one whose log is of another history"


async def _refused(slave: Side, master: Side) -> str:
    with master.opened() as (ours, of_master), slave.opened("SLAVE") as (theirs, of_slave):
        async with serving(ours, epochs=of_master) as serves:
            with following(theirs, serves.port, None, of_slave, True) as one:
                await until(lambda: one.status.error is not None)
                return str(one.status.error)


@pytest.mark.parametrize("asks", [True, False])
def test_another_size_of_log_files_is_named(tmp_path: Path, asks: bool) -> None:
    small, large = Side(tmp_path / "small"), tmp_path / "large"
    sizes = {**SIZES, "mapped_file_bytes_commit_log": 2 * FILE}

    async def names(slave: mqfast.MessageStore, master: mqfast.MessageStore) -> str:
        async with serving(master) as serves:
            with following(slave, serves.port, None, None, asks) as one:
                await until(lambda: "mappedFileSizeCommitLog" in str(one.status.error))
                return str(one.status.error)

    small.writes(LARGE, LARGE)
    with small.opened() as (ours, _), mqfast.open(large, broker_role="SLAVE", **sizes) as theirs:
        assert f"this slave has {2 * FILE}" in asyncio.run(names(theirs, ours))
    with mqfast.open(tmp_path / "of_master", **sizes) as ours, as_slave_of(tmp_path / "s") as theirs:
        ours.put("T", LARGE)
        ours.put("T", LARGE)
        assert f"this slave has {FILE}" in asyncio.run(names(theirs, ours))


def as_slave_of(path: Path) -> mqfast.MessageStore:
    return mqfast.open(path, broker_role="SLAVE", **SIZES)


def test_a_java_master_is_compared_record_by_record_as_far_as_needed(tmp_path: Path) -> None:
    """Both end with megabytes of equal messages, of other store times: no record of them is the same."""

    async def flow() -> None:
        small = {**SIZES, "mapped_file_bytes_commit_log": 1 << 20}
        with mqfast.open(tmp_path / "m", **small) as ours:
            fill(ours, 20)
            common = ours.engine.raw.end
            with mqfast.open(tmp_path / "s", broker_role="SLAVE", **small) as theirs:
                theirs.engine.raw.append(0, log_of(ours))
            with mqfast.open(tmp_path / "s", **small) as theirs:
                for store in (theirs, ours):
                    for number in range(5000):
                        store.put("T", b"%d" % number * 300, queue_id=0)
            with mqfast.open(tmp_path / "s", broker_role="SLAVE", **small) as theirs:
                epochs = EpochFile.load(OsApi(), str(tmp_path / "s"))
                log = log_of(ours)
                with java_master(0, log) as java:
                    bounds = lambda: (0, len(log))  # noqa: E731
                    with following(theirs, java.port, bounds, epochs) as one:
                        await until(lambda: one.status.state is FollowState.DIVERGED)
                    mark = load_divergence(OsApi(), str(tmp_path / "s"))
                    assert mark is not None
                    assert mark.common == common
                    with following(theirs, java.port, bounds, epochs, truncate_diverged=True):
                        await until(lambda: log_of(theirs) == log)
                assert load_divergence(OsApi(), str(tmp_path / "s")) is None
                assert epochs.terms == ()

    asyncio.run(flow())


def test_bytes_of_a_master_without_epochs_get_a_term_without_leader(tmp_path: Path) -> None:
    """A slave that followed a master of RocketMQ in between claims nothing of what it got there."""
    master, slave = Side(tmp_path / "m"), Side(tmp_path / "s")
    master.writes(b"common")
    asyncio.run(follow(slave, master, FollowState.TRANSFER))
    end = master.writes(b"more")
    asyncio.run(follow(slave, master, FollowState.TRANSFER, asks=False))
    assert EpochFile.load(OsApi(), str(slave.path)).terms[-1] == Term(0, end)
    asyncio.run(follow(slave, master, FollowState.TRANSFER))
    assert EpochFile.load(OsApi(), str(slave.path)).terms[-1].history


def test_a_log_before_its_slave_began_is_no_other_history(tmp_path: Path) -> None:
    master, slave = Side(tmp_path / "m"), Side(tmp_path / "s")
    with mqfast.open(master.path, **SIZES) as store:  # of an older version, without epochs
        fill(store, 50)
    asyncio.run(follow(slave, master, FollowState.TRANSFER, asks=False))
    master.writes(b"of the first start with epochs")
    asyncio.run(follow(slave, master, FollowState.TRANSFER))
    assert EpochFile.load(OsApi(), str(slave.path)).entries == EpochFile.load(OsApi(), str(master.path)).entries


def test_a_slave_that_ends_where_its_master_begins_needs_a_common_epoch(tmp_path: Path) -> None:
    keeps = {"retention_bytes": 2 * PAIR_FILE, "delete_files_interval_ms_commit_log": 0}

    async def flow() -> None:
        with (
            mqfast.open(tmp_path / "m", **PAIR_SIZES, **keeps, clean_resource_interval_ms=600_000) as ours,
            as_slave(tmp_path / "s") as theirs,
        ):
            of_master, of_slave = (EpochFile.load(OsApi(), str(tmp_path / one)) for one in ("m", "s"))
            of_master.begin_term(0, 0)
            put_up_to(ours, PAIR_FILE + 1)
            theirs.engine.raw.append(0, log_of(ours)[:PAIR_FILE])
            of_slave.begin_term(0, 0)  # of another master
            trimmed(ours, PAIR_FILE)
            async with serving(ours, epochs=of_master) as serves:
                with following(theirs, serves.port, None, of_slave, True) as one:
                    await until(lambda: one.status.state is FollowState.DIVERGED)
                    assert "no epoch in common with that" in str(one.status.error)
                of_slave.follow(of_master.terms, PAIR_FILE)
                with following(theirs, serves.port, None, of_slave, True):
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)

    asyncio.run(flow())

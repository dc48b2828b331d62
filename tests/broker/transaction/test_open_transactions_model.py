"""Random histories of transactions over restarts, kills and power cuts: a committed message is in its topic exactly
once, one that was rolled back never.

Store, tables and the parts of the broker are real; the connection of the producer is not, so
that a history takes milliseconds.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from clocked import Clocked
from conftest import copy_of_open
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqfast import properties as names
from mqfast.broker.acl.rights import Rights
from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.client_manager.producer_manager import ProducerManager
from mqfast.broker.metadata.topic_manager import HALF_TOPIC, TopicManager
from mqfast.broker.metrics.broker_stats import BrokerStats
from mqfast.broker.send.message_writer import MessageRecord, MessageWriter
from mqfast.broker.transaction.end_transaction import EndTransaction
from mqfast.broker.transaction.half_message import COMMIT, ROLLBACK, half_of
from mqfast.broker.transaction.open_transactions import OpenTransactions
from mqfast.broker.transaction.transaction_check import TransactionCheck
from mqfast.errors import CallRefused
from mqfast.remoting.channel import Channel
from mqfast.remoting.command import RemotingCommand
from mqfast.store.record.record import decode_record

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
STEP_MS = 31_000


class Line(Channel):
    """The connection of a producer: it remembers what the producer is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], bytes]] = []
        self.peer = ("127.0.0.1", 1)
        self.is_closed = False

    @property
    def unsent_bytes(self) -> int:
        return 0

    def oneway(self, code: int, ext_fields: Any = None, body: Any = b"", **_: Any) -> None:
        self.asked.append((ext_fields, bytes(body)))


class Broker(Clocked):
    """The parts that transactions need, over a store that is opened again and again."""

    def open(self) -> None:
        super().open()
        config = BrokerConfig()
        config.update({"brokerName": "broker-a", "transactionCheckMax": "100000"}, "test")
        self.line = Line()
        self.ticks = itertools.count()
        producers = ProducerManager(lambda: self.now_ms)
        producers.register(self.line, "client", "group")
        logger = logging.getLogger("mqfast.broker")
        engine = self.store.engine
        stats = BrokerStats("c", lambda _: False)
        writer = MessageWriter(
            engine, cast(Any, None), stats=stats, store_host=HOST, sync_flush=False, max_message_bytes=1 << 20,
            disk_use=lambda: "", now_ms=lambda: self.now_ms, logger=logger,
            arrivals=cast(Any, SimpleNamespace(waiting={}, notify_arrival=None)),
        )  # fmt: skip
        context = SimpleNamespace(
            config=config, store=self.store, engine=engine, tables=self.tables, offsets=self.tables.offsets,
            topics=TopicManager(self.tables.topics, config, 18), producers=producers, writer=writer,
            stats=stats, durable=None, store_host=HOST, now_ms=lambda: self.now_ms,
            stopping=asyncio.Event(), address="127.0.0.1:10911", rights=Rights(),
        )  # fmt: skip
        self.context = cast(BrokerContext, context)
        self.open_transactions = OpenTransactions(self.context)
        self.open_transactions.load()
        self.check = TransactionCheck(
            self.context, self.open_transactions, clock=lambda: float(next(self.ticks))
        )  # a half a turn
        self.ending = EndTransaction(self.context, self.open_transactions)

    def bodies(self) -> list[bytes]:
        return [bytes(m.body) for m in self.store.get("T", 0, 0, max_count=10_000, max_bytes=1 << 24)]


class Transactions(RuleBasedStateMachine):
    """One producer, one topic; the producer never changes its mind."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="mqfast-transactions-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        self.lives = 0
        self.open_transactions: dict[bytes, tuple[int, int]] = {}  # body -> place in the log, offset in the half queue
        self.minds: dict[bytes, int] = {}  # body -> what the producer decided
        self.count = 0

    @initialize()
    def start(self) -> None:
        self.broker = Broker(self.root / "0")
        self.durable_end = 0

    def teardown(self) -> None:
        try:
            if hasattr(self, "broker"):
                self.settle()
                self.broker.store.close()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    # --- what the producer does ---

    @rule(is_quiet=st.booleans())
    def prepare(self, is_quiet: bool) -> None:
        body = b"%d" % self.count
        self.count += 1
        pairs = {"TRAN_MSG": True, "PGROUP": "group", "UNIQ_KEY": f"U{body.decode()}"}
        if is_quiet:
            pairs["CHECK_IMMUNITY_TIME_IN_SECONDS"] = 100
        record = MessageRecord("T", 0, body, names.encode(pairs), sys_flag=4, born_timestamp=self.broker.now_ms)
        result = self.broker.context.writer.put(half_of(record))
        self.open_transactions[body] = (result.physical_offset, result.queue_offset)

    @precondition(lambda self: self.open_transactions)
    @rule(
        which=st.integers(0, 99),
        kind=st.sampled_from([COMMIT, COMMIT, ROLLBACK]),
        is_check=st.booleans(),
        is_cut=st.sampled_from([False] * 7 + [True]),
    )
    def end(self, which: int, kind: int, is_check: bool, is_cut: bool) -> None:
        """The producer says how a transaction ends, perhaps once more; a kill may come before the mark."""
        body = sorted(self.open_transactions)[which % len(self.open_transactions)]
        kind = self.minds.setdefault(body, kind)
        if is_cut:
            self.broker.open_transactions.write_marks = lambda: None  # type: ignore[method-assign]
        self.tell(kind, *self.open_transactions[body], is_check=is_check)
        if is_cut:
            self.kill()

    def tell(self, kind: int, place: int, offset: int, *, is_check: bool) -> None:
        fields = {
            "producerGroup": "group", "commitLogOffset": str(place), "tranStateTableOffset": str(offset),
            "commitOrRollback": str(kind), "fromTransactionCheck": str(is_check).lower(), "msgId": "x",
        }  # fmt: skip
        try:
            answer = self.broker.ending.end_transaction(self.broker.line, RemotingCommand(37, fields))
            assert isinstance(answer, RemotingCommand)
            assert answer.code in (0, 604)
        except CallRefused as refused:
            if refused.remark != "The transaction has ended already":
                raise

    @rule(
        answers=st.integers(0, 3**12 - 1),
        turns=st.sampled_from([1, 2, 3, 1000, 1000]),
        is_cut=st.sampled_from([False] * 3 + [True]),
    )
    def ask(self, answers: int, turns: int, is_cut: bool) -> None:
        """A round of checks, or its first turns; the producer answers some questions, always as it has decided."""
        self.broker.at(self.broker.now_ms + STEP_MS)
        if is_cut:
            self.broker.open_transactions.write_marks = lambda: None  # type: ignore[method-assign]
        self.round(turns)
        if is_cut:
            self.kill()
            return
        asked, self.broker.line.asked = self.broker.line.asked, []
        for number, (fields, body) in enumerate(asked):
            message = bytes(decode_record(body).body)
            kind = (COMMIT, ROLLBACK, 0)[answers // 3 ** (number % 12) % 3]
            if kind:
                kind = self.minds.setdefault(message, kind)
                self.tell(kind, int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"]), is_check=True)

    def round(self, turns: int) -> None:
        work = self.broker.check.round()
        try:
            for _ in range(turns):
                work.send(None)
        except StopIteration:
            return
        work.close()

    # --- what happens to the broker ---

    @rule()
    def persist(self) -> None:
        self.broker.tables.persist(before_offsets=self.broker.store.engine.log.flush)
        self.durable_end = self.broker.store.engine.log.flushed

    @rule()
    def restart(self) -> None:
        self.broker.store.flush()
        self.broker.tables.persist()
        self.broker.reopen()
        self.durable_end = self.broker.store.engine.log.written

    @rule()
    def kill(self) -> None:
        """What is in the page cache stays; tables are as they were persisted."""
        self.move(None)

    @rule(which=st.integers(0, 99))
    def cut_power(self, which: int) -> None:
        """The records behind some durable one are gone."""
        log = self.broker.store.engine.log
        ends, at = [], self.durable_end
        while at < log.written:
            ends.append(at)
            at += log.message(at).size
        if not ends:
            return
        self.move(ends[which * len(ends) // 100])

    def move(self, end: int | None) -> None:
        self.lives += 1
        old, target = self.broker, self.root / str(self.lives)
        copy_of_open(old.path, target)
        if end is not None:
            with (target / "commitlog" / f"{0:020d}").open("r+b") as file:
                size = file.seek(0, 2)
                file.seek(end)
                file.write(bytes(size - end))
        old.store.close()
        self.broker = Broker.__new__(Broker)
        self.broker.os_api, self.broker.path, self.broker.config = old.os_api, target, old.config
        self.broker.now_ms = old.now_ms
        self.broker.open()
        written = self.broker.store.engine.log.written
        self.durable_end = min(self.durable_end, written)
        self.open_transactions = {body: place for body, place in self.open_transactions.items() if place[0] < written}

    # --- what must hold ---

    @invariant()
    def nothing_comes_twice_and_nothing_that_was_taken_back(self) -> None:
        if not hasattr(self, "broker"):
            return
        found = self.broker.bodies()
        assert len(found) == len(set(found)), found
        for body in found:
            assert self.minds.get(body) == COMMIT, body

    def settle(self) -> None:
        """The producer answers everything: then each message is where the producer wants it."""
        for _ in range(12):
            self.broker.at(self.broker.now_ms + STEP_MS)
            self.round(1000)
            asked, self.broker.line.asked = self.broker.line.asked, []
            for fields, body in asked:
                kind = self.minds.setdefault(bytes(decode_record(body).body), ROLLBACK)
                self.tell(kind, int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"]), is_check=True)
        wanted = {body for body in self.open_transactions if self.minds.get(body) == COMMIT}
        found = self.broker.bodies()
        assert sorted(found) == sorted(wanted | {body for body in found if body not in self.open_transactions})
        assert len(found) == len(set(found))
        open_transactions = self.broker.open_transactions
        assert open_transactions.progress == open_transactions.end == self.broker.store.max_offset(HALF_TOPIC, 0)


TestTransactions = Transactions.TestCase

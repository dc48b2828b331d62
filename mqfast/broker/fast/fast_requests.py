"""The hot requests that reactors serve for a broker: publishes what reactors need, and adds what reactors have counted.

No request is served here. The way of Python stays whole: reactors leave to Python whatever is not published here.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from mqfast.broker.fast.published_pulls import PublishedPulls
from mqfast.broker.fast.send_service import SendService
from mqfast.broker.fast.topic_table import TopicTable
from mqfast.remoting.command import RemotingCommand, encode

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.pull.pull_message import PullProcessor
    from mqfast.broker.send.flush_waiter import ReplicaWaiter
    from mqfast.broker.send.send_message import SendProcessor
    from mqfast.remoting.reactor.reactor import Reactors

__all__ = ["FastRequests"]

_FIELDS: Final = b'"extFields":{'
_BINARY_HEAD: Final = 8 + 21
_EVERYTHING: Final = 2**63 - 1
_LOOK_S: Final = 0.005


def _pairs(fields: dict[str, str]) -> tuple[bytes, bytes]:
    """Return fields of an answer as both header codecs write them."""
    frame = encode(RemotingCommand(0, dict(fields)))
    begin = frame.index(_FIELDS) + len(_FIELDS)
    return frame[begin : frame.index(b'},"flag"', begin)] + b",", encode(RemotingCommand(0, dict(fields), serialize=1))[
        _BINARY_HEAD:
    ]


class FastRequests:
    """The services of a broker inside of its reactors.

    Thread: that of the event loop.
    """

    def __init__(self, reactors: Reactors, context: BrokerContext, send: SendProcessor, pull: PullProcessor) -> None:
        self._reactors: Final = reactors
        self._context: Final = context
        self._send: Final = send
        self._topics = TopicTable(reactors.threads)
        self._pulls = PublishedPulls(reactors, context, pull.publish_to)
        self._is_leaving = False
        self._replicated: ReplicaWaiter | None = None
        self._slaves_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        json_pairs, binary_pairs = _pairs(send.answer_fields)
        self._sends = SendService(
            reactors,
            context.engine,
            self._topics,
            self._pulls.table,
            additions=send.additions,
            id_prefix=send.id_prefix,
            store_host=context.store_host,
            json_pairs=json_pairs,
            binary_pairs=binary_pairs,
            timeout_ms=context.store.config.sync_flush_timeout_ms,
            slaves_fd=self._slaves_fd,
        )
        self._syncer = threading.Thread(target=self._sends.sync, name="mqfast-reactor-sync", daemon=True)

    def start(self) -> None:
        """Let reactors serve what Python publishes from now on."""
        context = self._context
        context.stats.before_reading.append(self._add_counts)
        if context.latencies is not None:
            context.latencies.before_reading.append(self._add_latencies)
        context.loop.add_reader(self._slaves_fd, self._wake_slaves)
        self._send.publish_to(self._topics, self._open)
        self._pulls.start()
        if context.writer.sync_flush:
            self._syncer.start()
        self._reactors.set_service(self._sends)

    async def drain(self, grace_s: float) -> None:
        """Leave later requests to Python, and let answers that wait be given within the grace time."""
        self._is_leaving = True
        self._open(False)
        self._pulls.withdraw()
        deadline_s = time.monotonic() + grace_s
        while self._sends.parked and time.monotonic() < deadline_s:
            await asyncio.sleep(_LOOK_S)

    def stop(self) -> None:
        """Leave all requests to Python; answers that still wait for slaves are sent as timed out."""
        if self._send.publishes:
            self._send.publish_to(None, None)
            self._reactors.set_service(None)
            self._pulls.stop()
            self._sends.close()
            self._follow(None)
            self._context.loop.remove_reader(self._slaves_fd)
            os.close(self._slaves_fd)
            if self._syncer.is_alive():
                self._syncer.join()
            context = self._context
            self._add_counts()
            context.stats.before_reading.remove(self._add_counts)
            if context.latencies is not None:
                self._add_latencies()
                context.latencies.before_reading.remove(self._add_latencies)

    def scan(self) -> None:
        """Let go what is not used any more; every second."""
        if self._send.publishes:
            self._pulls.scan()

    def counts(self) -> dict[str, int]:
        """Return the counters of the reactors by name."""
        return {
            **self._reactors.counts(),
            "answersWaiting": self._sends.parked,
            "answersWaitingFull": self._sends.parked_full,
        }

    # --- slaves ---

    def _open(self, is_open: bool) -> None:
        writer = self._context.writer
        self._follow(writer.replicated)
        self._sends.open(is_open and not self._is_leaving, writer.sync_flush, writer.replicated is not None)

    def _follow(self, replicated: ReplicaWaiter | None) -> None:
        """Tell reactors what slaves have; None: no answer waits for slaves."""
        if replicated is not self._replicated:
            if self._replicated is not None:
                self._replicated.acks.on_change.remove(self._slaves_changed)
                self._sends.set_slaves(_EVERYTHING, _EVERYTHING, _EVERYTHING, 0)
            self._replicated = replicated
            if replicated is not None:
                replicated.acks.on_change.append(self._slaves_changed)
        if replicated is not None:
            self._slaves_changed()

    def _slaves_changed(self) -> None:
        assert self._replicated is not None
        acks = self._replicated.acks
        self._sends.set_slaves(
            acks.acked if acks.needed else _EVERYTHING,
            acks.reach,
            self._context.writer.max_gap_bytes,
            int(acks.timeout_s * 1000),
        )

    def _wake_slaves(self) -> None:
        os.eventfd_read(self._slaves_fd)
        self._sends.slaves_woken()  # before the send: a later message wakes again
        if self._replicated is not None:
            self._replicated.wake()

    # --- counters ---

    def _add_counts(self) -> None:
        stats = self._context.stats
        for topic, count, size, sizes in self._topics.take_counts():
            stats.put_many(topic, count, size, sizes)
        took, most_ms = self._sends.take_slow_puts()
        stats.puts_took(took, most_ms)

    def _add_latencies(self) -> None:
        latencies = self._context.latencies
        assert latencies is not None
        for code, answer, counts, sum_ms in self._sends.take_latencies():
            latencies.add(code, answer, counts, sum_ms)

"""Messages of a queue by pulls, from the broker that the answers suggest; each answer has whole records.

Interprets the answers of RocketMQ's brokers without losing messages. A slave with slaveReadEnable=false returns an
offset after the withheld messages; a broker skips messages that retention removed without an error. The position
advances only past returned messages and past messages reported as lost. Imports neither Spark nor Arrow. Source:
PullMessageProcessor, DefaultPullMessageResultHandler.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from mqfast.client.consumer.pull_request import RawAnswer, raw_pull
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.route.route_table import MASTER_ID
from mqfast.client.values import MessageQueue, PullStatus
from mqfast.errors import DataLoss, NoRoute
from mqfast.spark.plan import OffsetRange
from mqfast.spark.remote.cluster import BrokerAway, NotReadable, RemoteCluster

__all__ = ["PullCounts", "QueuePuller", "Records"]

_MOST_COUNT: Final = 1 << 14
# Default limit of Apache's brokers; and the count from which mqfast's broker assumes a bulk read.
_FEW: Final = 32
_BULK: Final = 1025
_REMOVING: Final = "MESSAGE_WAS_REMOVING"
_NO_MATCH: Final = "NO_MATCHED_MESSAGE"
_RESET: Final = "OFFSET_RESET"
_log = logging.getLogger("mqfast.spark")


def _count(remaining: int) -> int:
    """Return the number of messages to request; the reader of the answer drops messages beyond the range."""
    return remaining if remaining <= _FEW else min(max(remaining, _BULK), _MOST_COUNT)


@dataclass
class PullCounts:
    """The counters of a task's pulls. ``waited_s``: waiting for answers; ``decoded_s``: decoding into columns."""

    pulls: int = 0
    rows: int = 0
    bytes: int = 0
    waited_s: float = 0.0
    decoded_s: float = 0.0

    def since(self, before: PullCounts) -> str:
        """Return the difference to earlier counters, as a log text."""
        return (
            f"{self.rows - before.rows} rows, {self.bytes - before.bytes} bytes, {self.pulls - before.pulls} pulls, "
            f"{self.waited_s - before.waited_s:.3f} s for answers, {self.decoded_s - before.decoded_s:.3f} s decoding"
        )


class Records(NamedTuple):
    """An answer with records, of a request at ``at``; the next request begins at ``next_offset``."""

    data: bytes | bytearray | memoryview
    at: int
    next_offset: int
    min_offset: int


class QueuePuller:
    """Pulls a range of a queue.

    Args: ``fail``: raise DataLoss for lost messages instead of a warning.
    Attributes: ``is_filtered``: the broker filters by the subscription; ``stopped``: set when the answers are no longer
        needed, which ends retries.
    Thread: one; any thread may set ``stopped``.
    """

    def __init__(
        self,
        cluster: RemoteCluster,
        broker: str,
        group: str,
        piece: OffsetRange,
        subscription: Subscription,
        *,
        most_bytes: int,
        fail: bool,
        counts: PullCounts,
    ) -> None:
        self._cluster: Final = cluster
        self._broker: Final = broker
        self._topic: Final = piece.topic
        self._group: Final = cluster.wire(group)
        self._queue: Final = MessageQueue(cluster.wire(piece.topic), broker, piece.queue_id)
        self._name: Final = f"queue {piece.topic}/{piece.queue_id} of broker {broker}"
        self._at = piece.start
        self._end: Final = piece.end
        self._subscription: Final = subscription
        self.is_filtered: Final = not subscription.is_all
        self._most_bytes: Final = most_bytes
        self._fail: Final = fail
        self._counts: Final = counts
        self._broker_id = MASTER_ID
        self.stopped: Final = threading.Event()

    def answers(self) -> Iterator[Records]:
        """Yield answers with records, until the end of the range or of the queue.

        Raises: DataLoss, BrokerAway, BrokerError.
        """
        while self._at < self._end:
            begin = time.monotonic()
            try:
                answer = self._cluster.with_retry(self._name, self._one, self.stopped)
            except NoRoute as error:
                self.report_loss(self._at, self._end, f"the broker does not have the topic any more ({error})")
                return
            except BrokerAway as error:
                if self._fail or not isinstance(error.__cause__, NotReadable):
                    raise
                self.report_loss(self._at, self._end, str(error))
                return
            self._counts.waited_s += time.monotonic() - begin
            self._counts.pulls += 1
            at = self._at
            if answer.status is PullStatus.FOUND:
                self._at = max(answer.next_offset, at + 1)
                self._counts.bytes += len(answer.records)
                yield Records(answer.records, at, self._at, answer.min_offset)
            else:
                self._at = self._behind(answer)

    def _one(self) -> RawAnswer:
        """Return a trustworthy answer to a single pull. Raises: BrokerAway for an unreliable answer of a slave."""
        broker_id, address = self._cluster.address(self._broker, self._broker_id)
        asked = raw_pull(
            address, self._group, self._queue, self._at, self._subscription,
            max_count=_count(self._end - self._at), max_bytes=self._most_bytes, post_subscription=True,
        )  # fmt: skip
        answer = self._cluster.pull(self._broker, self._topic, self._queue.queue_id, asked)
        matched = answer.status is PullStatus.NO_MATCHED_MSG and self.is_filtered and answer.remark == _NO_MATCH
        if matched and answer.next_offset <= self._at:
            raise BrokerAway(f"{address} finds nothing at {self._at} and goes on at {answer.next_offset}")
        if answer.status is PullStatus.FOUND or matched:
            self._broker_id = answer.broker_id
            return answer
        if broker_id != MASTER_ID:
            # A slave may lag; with slaveReadEnable=false the returned offset skips messages.
            self._broker_id = MASTER_ID
            raise BrokerAway(f"{address}, a slave, has nothing at {self._at}: {answer.remark}")
        return answer

    def _behind(self, answer: RawAnswer) -> int:
        """Return the next offset after an answer of a master without records. Raises: DataLoss."""
        at, behind = self._at, answer.next_offset
        if answer.status is PullStatus.NO_MATCHED_MSG:
            if answer.remark == _NO_MATCH and self.is_filtered:
                return behind
            if answer.remark == _REMOVING and behind > at:
                return self.report_loss(at, behind, "retention removes them")
            return self.report_loss(at, max(behind, at + 1), f"the broker does not send them: {answer.remark}")
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            if answer.remark == _RESET:
                return at  # the offsets of the pull group were reset, which does not concern messages
            if answer.min_offset > at:
                return self.report_loss(at, answer.min_offset, "they were removed")
        elif behind > at:
            return self.report_loss(at, behind, "the broker does not find them")
        return self.report_loss(at, self._end, f"the queue ends at {answer.max_offset}")

    def report_loss(self, first: int, behind: int, why: str) -> int:
        """Report lost messages of the range. Returns: the next offset. Raises: DataLoss."""
        behind = min(behind, self._end)
        what = f"{self._name}: messages {first} to {behind - 1} are not there: {why}"
        if self._fail:
            raise DataLoss(f"{what}; failOnDataLoss=false leaves them out")
        _log.warning("%s", what)
        return behind

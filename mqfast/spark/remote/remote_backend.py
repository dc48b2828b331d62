"""A broker of a running cluster as a backend: queues with bounds, and messages by pulls (code 11).

The store's scanner makes columns of the records in the answers, as of files: no Python object for a message. Requests
to an unavailable broker are retried (``cluster.py``). Every planned message is either returned or reported as lost
(``pulls.py``).
"""

from __future__ import annotations

import dataclasses
import logging
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mqfast.client.cluster import is_unavailable
from mqfast.client.consumer.pull_request import raw_pull
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.values import MessageQueue, PullStatus
from mqfast.errors import CorruptFile, MqfastError, NoRoute
from mqfast.message import LMQ_PREFIX
from mqfast.spark.backend import ReadSettings
from mqfast.spark.bodies import decompressed
from mqfast.spark.columns import decompresses, gather_of
from mqfast.spark.offsets import Place, decode
from mqfast.spark.plan import OffsetRange, Queue, Snapshot, Split
from mqfast.spark.remote import remote_views
from mqfast.spark.remote.cluster import NotReadable, RemoteCluster, wanted_topics
from mqfast.spark.remote.prefetch import Prefetcher
from mqfast.spark.remote.pulls import PullCounts, QueuePuller, Records
from mqfast.spark.schema import Column
from mqfast.spark.selection import readable
from mqfast.store.record.record import StoredMessage, decode_record

if TYPE_CHECKING:
    import pyarrow as pa

    from mqfast.spark.options import Options
    from mqfast.store.reader.gather import Gather

__all__ = ["RemoteBackend"]

_HEAD_BYTES: Final = 128  # as for files: a stream identifies a record by the head
_SAMPLE: Final = 32
_UNKNOWN_BYTES: Final = 1024.0
_ANSWERS_AHEAD: Final = 2
_MOST_NAMES: Final = 5

_log = logging.getLogger("mqfast.spark")


def _is_plain(tag: str) -> bool:
    """Return whether a tag expression with this text matches exactly this tag.

    The broker splits the expression at ``||`` and strips each part.
    """
    return tag[:1] > " " and tag[-1:] > " " and "||" not in tag


class RemoteBackend:
    """The queues of a broker. Thread: one at a time. Raises: as Backend; ClientError for errors of the network."""

    def __init__(self, options: Options, broker: str) -> None:
        self.options: Final = options
        self.broker: Final = broker
        self.cluster: Final = RemoteCluster.shared(options)
        self.root: Final = f"{options.namesrv}/{broker}"
        self.counts = PullCounts()
        self._seen: Snapshot | None = None
        self._sizes: dict[str, float] = {}
        self._committed: dict[Place, int] = {}
        self._unread: tuple[Place, ...] = ()

    @property
    def log(self) -> None:
        """Return None: brokers do not return their log."""

    def release_files(self) -> None:
        """Close idle connections."""
        self.cluster.connection_pool.close_idle()

    def close(self) -> None:
        """Close idle connections; the other connections stay for the next task of this process."""
        self.cluster.connection_pool.close_idle()

    # --- state ---

    def snapshot(self) -> Snapshot:
        """Return the present queues, with an estimate of the message size from a sample."""
        self.cluster.forget()  # so that a new topic is found
        snapshot = self.refresh()
        return dataclasses.replace(snapshot, record_bytes=self._record_bytes(snapshot))

    def refresh(self, *, wait: bool = True) -> Snapshot:
        """See Backend."""
        return self.cluster.with_retry(f"broker {self.broker}", self._read_snapshot) if wait else self._read_snapshot()

    def _read_snapshot(self) -> Snapshot:
        broker_id, address = self.cluster.address(self.broker)
        queues: list[Queue] = []
        topics = set()
        for topic in wanted_topics(self.cluster, self.options, self.broker):
            bounds = self.cluster.bounds(self.broker, topic, by_pulls=self.options.view == "messages")
            if bounds is None:
                continue
            topics.add(topic)
            count = self.cluster.readable_queues(self.broker, topic)
            for queue_id, (low, high) in bounds.items():
                is_readable = count is None or queue_id < count
                queues.append(Queue(topic, queue_id, low, max(low, high), is_readable=is_readable))
        queues.sort(key=lambda q: (q.topic, q.queue_id))
        snapshot = Snapshot(
            self.root, self.broker, time.time_ns() // 1_000_000, 0, 0, tuple(queues), dispatched=-1,
            may_lag=broker_id != 0, record_bytes=_UNKNOWN_BYTES, topics=frozenset(topics),
        )  # fmt: skip
        seen = self._seen
        if seen is not None and _alike(seen) == _alike(snapshot):
            return seen
        self._log_unread(snapshot)
        if snapshot.may_lag and not (seen is not None and seen.may_lag):
            _log.warning(
                "broker %s: the master is away; what there is to read is what its slave %s has", self.broker, address
            )
        self._seen = snapshot
        return snapshot

    def _log_unread(self, snapshot: Snapshot) -> None:
        """Log queues with messages that a read leaves out, after each change of this set."""
        unread = tuple((q.topic, q.queue_id) for q in snapshot.queues if not q.is_readable and q.messages)
        if unread and unread != self._unread and self.options.view == "messages":
            names = ", ".join(f"{topic}/{queue_id}" for topic, queue_id in unread[:_MOST_NAMES])
            more = f" and {len(unread) - _MOST_NAMES} more" if len(unread) > _MOST_NAMES else ""
            _log.warning(
                "broker %s: queues %s%s have messages and are not read: their topics have fewer queues for reading, or "
                "no permission to read", self.broker, names, more,
            )  # fmt: skip
        self._unread = unread

    def _record_bytes(self, snapshot: Snapshot) -> float:
        """Return the estimated bytes of a message: a sample of each topic, weighted by the number of messages."""
        total = messages = 0.0
        largest: dict[str, Queue] = {}
        queues = readable(snapshot.queues) if self.options.view == "messages" else []  # other views read no messages
        for q in queues:
            if q.messages > (largest[q.topic].messages if q.topic in largest else 0):
                largest[q.topic] = q
        for q in queues:
            if q.messages:
                if q.topic not in self._sizes:
                    queue = largest[q.topic]
                    self._sizes[q.topic] = self._sample(queue, (queue.min_offset + queue.max_offset) // 2)
                total += self._sizes[q.topic] * q.messages
                messages += q.messages
        return total / messages if messages else _UNKNOWN_BYTES

    def _sample(self, queue: Queue | OffsetRange, offset: int) -> float:
        records = self._records(queue.topic, queue.queue_id, offset, _SAMPLE)
        return sum(record.size for record in records) / len(records) if records else _UNKNOWN_BYTES

    def _records(self, topic: str, queue_id: int, offset: int, count: int) -> list[StoredMessage]:
        """Return up to ``count`` messages from an offset on, as objects; empty if there is none."""

        def once() -> list[StoredMessage]:
            _, address = self.cluster.address(self.broker)
            queue = MessageQueue(self.cluster.wire(topic), self.broker, queue_id)
            group = self.cluster.wire(self.options.pull_group)
            wanted = Subscription(queue.topic, "*")
            asked = raw_pull(address, group, queue, offset, wanted, max_count=count, post_subscription=True)
            try:
                answer = self.cluster.pull(self.broker, topic, queue_id, asked)
            except (NoRoute, NotReadable):
                return []
            data, records = bytes(answer.records), []
            at = 0
            while answer.status is PullStatus.FOUND and at < len(data):
                records.append(decode_record(data, at))
                at += records[-1].size
            return records

        return self.cluster.with_retry(f"queue {topic}/{queue_id} of broker {self.broker}", once)

    def message_at(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """Return a message; None if the queue has no message at this offset now."""
        records = self._records(topic, queue_id, offset, 1)
        return records[0] if records and records[0].record_queue_offset == offset else None

    def check(self, store_id: str) -> None:
        """Do nothing: a broker is identified by name, and a stream compares the messages of the queues."""

    def message_mark(self, topic: str, queue_id: int, offset: int) -> tuple[int, int | None] | None:
        """See Backend."""
        message = self.message_at(topic, queue_id, offset)
        return None if message is None else (message.physical_offset, zlib.crc32(message.to_bytes()[:_HEAD_BYTES]))

    def is_filler(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return False: a broker does not report fillers."""
        return False

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """See Backend.

        Brokers before RocketMQ 5.2 may return an earlier message, or a message after others of the same millisecond. So
        the answer is compared with the neighbouring messages, and a binary search corrects the answer.
        """
        once = partial(self.cluster.offset_at, self.broker, topic, queue_id, timestamp_ms)
        named = self.cluster.with_retry(f"broker {self.broker}", once)
        near = self._records(topic, queue_id, max(0, named - 1), 2) or self._records(topic, queue_id, named, 1)
        agree = all((record.store_timestamp < timestamp_ms) == (record.record_queue_offset < named) for record in near)
        if agree or topic.startswith(LMQ_PREFIX):  # the records of a light queue are in other queues
            return named
        bounds = self.cluster.with_retry(f"broker {self.broker}", partial(self.cluster.bounds, self.broker, topic))
        low, high = (bounds or {}).get(queue_id, (named, named))
        while low < high:
            middle = (low + high) // 2
            records = self._records(topic, queue_id, middle, 1)
            if not records:  # removed by retention meanwhile
                return named
            if records[0].store_timestamp < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def group_offsets(self, group: str, queues: Iterable[Place]) -> dict[Place, int]:
        """See Backend."""
        offsets = {}
        for place in queues:
            once = partial(self.cluster.group_offset, self.broker, group, *place)
            offset = self.cluster.with_retry(f"broker {self.broker}", once)
            if offset is not None:
                offsets[place] = offset
        return offsets

    def unit_sizes(self, piece: OffsetRange) -> Sequence[int]:
        """Return the mean size of a sample from the start on, for each message."""
        return [max(1, round(self._sample(piece, piece.start)))] * (piece.end - piece.start)

    # --- messages ---

    def gather(self, piece: OffsetRange, columns: Sequence[Column], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Yield messages along a queue; see Backend."""
        batches = self._batches(piece, gather_of(columns, settings), settings)
        if decompresses(columns, settings):
            batches = decompressed(batches, columns, settings.verify_crc, self.root, settings.max_body_bytes)
        return batches

    def _batches(self, piece: OffsetRange, gather: Gather, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        puller = QueuePuller(
            self.cluster, self.broker, self.options.pull_group, piece, self._subscription(piece.topic, settings),
            most_bytes=self.options.pull_bytes, fail=settings.fail_on_data_loss, counts=self.counts,
        )  # fmt: skip
        answers = Prefetcher(puller.answers(), _ANSWERS_AHEAD)
        before = dataclasses.replace(self.counts)
        try:
            for answer in answers:
                for _ in self._decode(answer, piece, gather, puller):
                    self.counts.rows += gather.rows
                    yield pa.record_batch(gather.finish())
            if gather.rows:
                self.counts.rows += gather.rows
                yield pa.record_batch(gather.finish())
        finally:
            puller.stopped.set()
            answers.close()
            _log.info("broker %s: %s: %s", self.broker, piece, self.counts.since(before))
        if gather.skipped:
            _log.warning("%s %s: left out %d damaged records", self.root, piece, gather.skipped)

    def _subscription(self, topic: str, settings: ReadSettings) -> Subscription:
        wire = self.cluster.wire(topic)
        if settings.sql is not None:
            return Subscription(wire, None, sql=settings.sql)
        # Tags that an expression cannot match exactly: only the task compares.
        named = settings.tags is not None and all(_is_plain(tag) for tag in settings.tags)
        return Subscription(wire, " || ".join(settings.tags or ()) if named else "*")

    def _decode(self, answer: Records, piece: OffsetRange, gather: Gather, puller: QueuePuller) -> Iterator[None]:
        """Decode an answer into the columns; yield whenever the columns are full. Raises: CorruptFile, DataLoss."""
        asked, shown = self.cluster.wire(piece.topic).encode(), piece.topic.encode()
        end = min(answer.next_offset, piece.end)
        place, expected = 0, -1 if puller.is_filtered else answer.at
        while True:
            begin = time.monotonic()
            place, why, expected, there = gather.answer(
                answer.data, place, expected, piece.start, piece.end, asked, shown, piece.queue_id
            )
            self.counts.decoded_s += time.monotonic() - begin
            if why == "full":
                yield
            elif why == "hole":
                expected = self._report_hole(puller, expected, there, answer)
            elif why == "limit":
                break
            else:
                raise CorruptFile(
                    f"queue {piece.topic}/{piece.queue_id}: an answer to a pull at {answer.at} has what is no whole "
                    "record of the queue", path=self.root, offset=place, expected="a record", found=why,
                )  # fmt: skip
        if 0 <= expected < end:
            self._report_hole(puller, expected, end, answer)

    def _report_hole(self, puller: QueuePuller, first: int, there: int, answer: Records) -> int:
        removed = there <= answer.min_offset
        return puller.report_loss(
            first,
            there,
            "they were removed" if removed else "the broker leaves them out (damage, or a compacted topic)",
        )

    # --- views ---

    def view_pieces(self, snapshot: Snapshot, options: Options) -> list[Split]:
        """See Backend."""
        return remote_views.view_pieces(snapshot, options)

    def view_rows(self, piece: Split, columns: Sequence[Column], options: Options) -> Iterator[pa.RecordBatch]:
        """See Backend."""
        return remote_views.view_rows(self.cluster, self.broker, piece, columns, options)

    # --- leases and offsets ---

    def lease(self, pieces: Sequence[Split], ttl_ms: int) -> None:
        """Do nothing: a broker has no leases, and messages removed by retention are reported as lost."""

    def keep(self, pieces: Sequence[Split], ttl_ms: int) -> None:
        """Do nothing, as ``lease``."""

    def commit_group(self, group: str, offset: Mapping[str, Any]) -> bool:
        """See Backend."""
        queues = decode(offset, along_log=False).queues
        assert queues is not None
        failed: MqfastError | None = None
        for place, at in queues.items():
            try:
                if place not in self._committed:
                    known = self.cluster.group_offset(self.broker, group, *place)
                    self._committed[place] = -1 if known is None else known
                if at > self._committed[place]:
                    self.cluster.commit(self.broker, group, *place, at)
                    self._committed[place] = at
            except MqfastError as error:  # a missing queue: the other queues are committed
                failed = error
                if is_unavailable(error):
                    break
        if failed is not None:
            _log.warning("group %s: %s: its offsets are committed with a later batch", group, failed)
        return failed is None


def _alike(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.queues, snapshot.topics, snapshot.may_lag

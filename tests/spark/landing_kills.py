"""Brokers, drivers, executors and tasks killed while a stream lands messages of a broker in Parquet: each once.

A part of ``make broker-kills``, whose short form is in ``test_kills_of_brokers.py``. Half of the messages
are there at the start; the others are sent while kills go on, some after each kill. What must have landed is what the
broker's store holds at the end: a send whose answer was lost is repeated, and may be stored twice. The rest is as in
``broker_kills.py``. Sinks: ``files``, Spark's own of Parquet, and ``each``, a function of each batch that writes
Parquet.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import broker_kills
import kills
import pyarrow.parquet as pq
from running import BrokerProcess

import mqfast
from mqfast.client import Producer
from mqfast.errors import MqfastError
from mqfast.message import Message

TOGETHER = 100
COLUMNS = ["queueId", "queueOffset", "body"]
Rows = Counter[tuple[int, int, bytes]]


def body_of(number: int) -> bytes:
    return b"%d " % number + b"x" * (number % 400)


@dataclass
class LandingRun(broker_kills.BrokerRun):
    """A broker's messages into Parquet files."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.source = self.target = self.directory / "out"
        (self.directory / "broker").mkdir()
        self.broker = BrokerProcess(self.directory / "broker", defaultTopicQueueNums=kills.QUEUES)
        self.acknowledged: set[int] = set()
        self._numbers = iter(range(self.rows))
        self._parts: queue.Queue[int] = queue.Queue()
        self._sender = threading.Thread(target=self._send_parts, name="sender", daemon=True)
        self._producer = Producer("sender", self.broker.namesrv)
        first = self.rows // 2 if self.kills else self.rows
        self._send(first)
        left = self.rows - first
        # What is left over goes with the last kill.
        self._each = [left // len(self.kills)] * (len(self.kills) - 1) if self.kills else []
        self._each += [left - sum(self._each)] if self.kills else []
        self._sender.start()

    def _send(self, count: int) -> None:
        """The next rows, until all of them are acknowledged."""
        left = list(itertools.islice(self._numbers, count))
        while left:
            now = left[:TOGETHER]
            try:
                self._producer.send_batch([Message("t", body_of(number)) for number in now])
            except MqfastError:  # the broker was killed; what it stored is stored
                time.sleep(0.05)
                continue
            self.acknowledged.update(now)
            del left[:TOGETHER]

    def _send_parts(self) -> None:
        while count := self._parts.get():
            self._send(count)

    def _more(self) -> dict[str, Any]:
        reads = {"namesrv": self.broker.namesrv, "brokerTimeout": "300s", "columns": ",".join(COLUMNS)}
        return {"reads": reads, "until": str(self.directory / "all-sent")}

    def _kill(self, pid: int, kind: str) -> bool:
        """Behind each kill there are new messages."""
        if not super()._kill(pid, kind):
            return False
        self._parts.put(self._each.pop(0))
        return True

    def _all_killed(self) -> None:
        self._parts.put(0)
        self._sender.join(kills.END_TIMEOUT_S)
        assert not self._sender.is_alive(), "the broker does not take messages any more"
        (self.directory / "all-sent").touch()

    def end(self) -> None:
        """The sender and the broker end."""
        self._parts.put(0)
        self._producer.close()
        super().end()

    def _landed(self) -> Iterator[Path]:
        if self.sink == "files":
            yield from map(Path, kills.named_files(self.target))
        else:
            yield from self.target.glob("batch=*/*.parquet")

    def check(self) -> None:
        """Each message of the store once, and nothing else; all that was acknowledged is in the store."""
        self.end()
        stored: Rows = Counter()
        with mqfast.StoreReader(self.broker.store) as reader:
            for message in reader.scan():
                if message.topic == "t":
                    stored[message.queue_id, message.queue_offset, bytes(message.body)] += 1
        landed: Rows = Counter()
        for path in self._landed():
            columns = (pq.read_table(path, columns=[name], partitioning=None).column(0) for name in COLUMNS)
            landed.update(zip(*(column.to_pylist() for column in columns), strict=True))
        numbers = {int(body.split()[0]) for _, _, body in stored}
        assert numbers == self.acknowledged == set(range(self.rows))
        lost, repeated = stored - landed, landed - stored
        assert not lost, f"{len(lost)} lost, {len(repeated)} repeated; the first lost: {_places(lost)}"
        assert not repeated, f"{len(repeated)} repeated or not of the store: {_places(repeated)}"
        assert landed == stored


def _places(rows: Rows) -> list[tuple[int, int]]:
    return sorted((queue_id, offset) for queue_id, offset, _ in rows)[:5]

"""Scenarios of idempotent writes: rows of tasks as Spark's sink sends rows, each stored once."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from once_rows import Task

from mqfast.errors import MqfastError
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.once import END_ONCE

if TYPE_CHECKING:
    from mqfast.remoting.command import RemotingCommand
    from mqfast.sim import Cluster

__all__ = ["rows", "rows_fail_over"]

_ROWS = 12
_BATCHES = 6
_TRIES = 300


async def rows(c: Cluster) -> None:
    """Write rows to a broker that is killed, cut off and stopped."""
    await c.brokers("a")
    await _write(c)


async def rows_fail_over(c: Cluster) -> None:
    """Write rows to brokers under fail-over."""
    await c.brokers("a", replicas=2, in_sync=2)
    await _write(c)


async def _write(c: Cluster) -> None:
    writer = _Writer(c, await c.producer("w"))
    await c.consumer("g", "t", lambda _: None)
    for batch in range(_BATCHES):
        if batch == _BATCHES - 1:
            await c.heal()
        tasks = [_named(batch, partition) for partition in range(2)]
        await asyncio.gather(*(writer.write(task, queue_id) for queue_id, task in enumerate(tasks)))
        await writer.complete(batch, len(tasks) * _ROWS)
        late = [b"batch %d late" % batch]
        c.history.attempt("t", late[0])
        c.history.withdrawn.add(late[0])
        await writer.try_once(Task(late, batch=batch, partition=7), 0, 1, 0)
        await c.sleep(c.rng.random() * 4)
    await c.settled()


def _named(batch: int, partition: int) -> Task:
    return Task([b"batch %d task %d row %d" % (batch, partition, n) for n in range(_ROWS)], batch, partition)


class _Writer:
    """A writer that repeats a request until the answer, and begins a task anew behind an error."""

    def __init__(self, c: Cluster, producer: Any) -> None:
        self._c = c
        self._process = producer.process
        self._clients: dict[int, RemotingClient] = {}

    async def call(self, code: int, body: bytes = b"", **fields: Any) -> RemotingCommand:
        """Make a request to the broker that leads, in the process of the client."""
        leader = self._c.invariants.leader("a")
        if leader is None:
            raise MqfastError("no broker leads")
        address = f"{leader.machine.address}:10911"

        number = self._c.rng.randrange(2)  # two attempts of a task have connections of their own

        async def work() -> RemotingCommand:
            if number not in self._clients:
                self._clients[number] = RemotingClient()
            return await self._clients[number].call(address, code, fields, body, timeout_ms=2000)

        task = self._c.loop.create_task(work(), context=self._process.context)
        answer: RemotingCommand = await self._c.finished(self._process, task)
        return answer

    async def try_once(self, task: Task, begin: int, end: int, queue_id: int) -> int | None:
        """Send rows. Returns: the code of the answer, None without one."""
        try:
            return (await task.send(self, begin, end, queue_id)).code
        except MqfastError:
            return None

    async def write(self, task: Task, queue_id: int) -> None:
        """Send all rows of a task; two requests are on their way at a time, as two attempts of a task may be."""
        c = self._c
        for body in task.bodies:
            c.history.attempt("t", body)
            c.history.once.add(body)
        at = tries = 0
        while at < len(task.bodies):
            tries += 1
            assert tries < _TRIES, f"batch {task.marks[0].batch} is refused again and again"
            middle = min(at + c.rng.randrange(1, 5), len(task.bodies))
            end = min(middle + c.rng.randrange(1, 5), len(task.bodies))
            sends = [self.try_once(task, at, middle, queue_id)]
            if c.rng.random() < 0.3:
                sends.append(self.try_once(task, at, middle, queue_id))
            if middle < end and c.rng.random() < 0.5:
                sends.append(self.try_once(task, middle, end, queue_id))
            codes = await asyncio.gather(*sends)
            if 0 in codes[:1]:
                at = middle
            else:
                at = 0 if c.rng.random() < 0.5 or ResponseCode.MESSAGE_ILLEGAL in codes else at
                await c.sleep(0.2)
        c.history.expected += [("t", body) for body in task.bodies]

    async def complete(self, batch: int, count: int) -> None:
        """Note that a batch is stored as a whole."""
        while True:
            with contextlib.suppress(MqfastError):
                answer = await self.call(END_ONCE, key="k" * 16, batch=batch, rows=count, topic="t")
                if answer.code == 0:
                    return
            await self._c.sleep(0.2)

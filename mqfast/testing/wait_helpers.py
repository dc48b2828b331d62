"""Waits for a test's brokers, and the description of the cluster in every failure.

Every wait has a deadline. Thread: that of the event loop, but for ``until_true``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

from mqfast.client.delivery import Delivery
from mqfast.testing import checks
from mqfast.testing import store_inspection as look
from mqfast.testing.cluster import RunningCluster

__all__ = ["WAIT_S_MAX", "Waits", "describe", "stopped_loop", "until_true"]

_T = TypeVar("_T")
WAIT_S_MAX: Final = 86_400
_LOOK_S: Final = 0.005  # polling interval without a notification
_NUDGE_S: Final = 0.025
_REQUESTS: Final = 20
_WAITING: Final = 10
_BODY: Final = 60


class Waits:
    """Waits for conditions in the event loop, checked after each answer of a server."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._waiting: set[asyncio.Future[None]] = set()
        cluster.gate.arrived = self._wake

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, poll: Callable[[], _T | None], timeout_s: float, *, nudge: str = "") -> _T | None:
        """Return the result of ``poll`` once there is a result; None at the timeout.

        Args: nudge: a consumer group whose held pulls are answered meanwhile, so that the group commits.
        """
        loop = asyncio.get_running_loop()
        deadline_s, nudge_s = loop.time() + timeout_s, loop.time() + _NUDGE_S
        while (result := poll()) is None:
            now_s = loop.time()
            if now_s >= deadline_s:
                return None
            if nudge and now_s >= nudge_s:
                self.nudge(nudge)
                nudge_s = now_s + _NUDGE_S
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait([future], timeout=min(_LOOK_S, deadline_s - now_s))
            finally:
                self._waiting.discard(future)
        return result

    def nudge(self, group: str) -> None:
        """Answer the group's held pulls, so that its next pulls commit their offsets."""
        for topic in look.topics_of(self._cluster, group):
            for member in self._cluster.running():
                config = member.context.topics.get(topic)
                for queue_id in range(config.read_queue_nums if config is not None else 0):
                    member.parts.long_polling.answer_held((topic, queue_id))


def until_true(condition: Callable[[], object], timeout_s: float) -> bool:
    """Poll a condition of the caller in the caller's thread. Returns: False at the timeout."""
    deadline_s, pause_s = time.monotonic() + checks.seconds("timeout_s", timeout_s, WAIT_S_MAX), 0.001
    while not condition():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return bool(condition())
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, 0.02)
    return True


def stopped_loop() -> str:
    """Return advice for a failed wait inside of an event loop; empty elsewhere."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return (
        "\nThe event loop of this thread stood still meanwhile, with all clients in it: "
        "await asyncio.to_thread(broker.wait_...)"
    )


def describe(cluster: RunningCluster) -> str:
    """Return the cluster as text: topics, groups, last requests, waiting work, faults."""
    lines = [f"--- the brokers at {_time(cluster.time.now_ms())} ---"]
    for member in cluster.members.values():
        lines.append(f"{member.name}: {member.state}")
    lines += ["topics:", *_topics(cluster), "groups:", *_groups(cluster)]
    waiting = look.scheduled(cluster)
    lines.append(f"waiting for their time: {len(waiting)}")
    for due, message in waiting[:_WAITING]:
        real = message.properties.get("REAL_TOPIC", message.topic)
        lines.append(f"  {due.isoformat(timespec='milliseconds')}  {real}  {_body(message)}")
    gate = cluster.gate
    faults = [*map(repr, gate.faults), *(["connections are refused"] if gate.refuses else []), *cluster.disk.texts]
    faults += [f"clocks jumped by {ms / 1000:+g} s" for ms in cluster.time.jumps]
    lines.append(f"faults: {'; '.join(faults) or 'none'}")
    lines.append(f"the last requests, of {len(gate.asked)}:")
    lines += [f"  {_time(request.at_ms)[11:]}  {request!r}" for request in list(gate.asked)[-_REQUESTS:]]
    return "\n".join(lines)


def _topics(cluster: RunningCluster) -> list[str]:
    counts: dict[str, int] = {}
    for member in cluster.running():
        context = member.context
        for topic in {*context.topics.table, *context.store.topics()}:
            if topic not in cluster.topics and context.topics.is_system(topic):
                continue
            counts.setdefault(topic, 0)
            for queue_id in context.store.queue_ids(topic):
                end, begin = context.store.max_offset(topic, queue_id), context.store.min_offset(topic, queue_id)
                counts[topic] += end - begin
    return [f"  {topic}: {count} messages" for topic, count in sorted(counts.items())] or ["  none"]


def _groups(cluster: RunningCluster) -> list[str]:
    groups: dict[str, None] = {}
    for member in cluster.running():
        groups.update(dict.fromkeys(group.name for group in member.context.consumers.groups()))
        groups.update(dict.fromkeys(member.context.offsets.groups()))
    lines = []
    for group in groups:
        members = look.members_of(cluster, group)
        lines.append(f"  {group}: {len(members)} members {', '.join(members)}")
        for topic in look.topics_of(cluster, group):
            for lag in look.lags(cluster, group, topic):
                queue = f"{topic} {lag.queue.broker_name} {lag.queue.queue_id}"
                at = "nothing" if lag.committed < 0 else str(lag.committed)
                lines.append(f"    {queue}: {at} of {lag.end} committed, {lag.behind} behind")
    return lines or ["  none"]


def _body(message: Delivery) -> str:
    body = bytes(message.view[:_BODY])
    return repr(body) + ("..." if len(message.view) > _BODY else "")


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec="milliseconds")

"""The promises of the product, checked during a run and at the end.

A check reads stores directly, and judges answers of sends and deliveries in the history.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.metadata.topic_manager import DLQ_PREFIX
from mqfast.errors import MqfastError
from mqfast.sim.history import Broken, Place, Pop
from mqfast.sim.servers import BrokerServer, brokers_of
from mqfast.sim.threads import in_process
from mqfast.sim.world import World

if TYPE_CHECKING:
    from mqfast.store.message_store import MessageStore

__all__ = ["Invariants"]

_PIECE: Final = 1 << 20
_OFFSETS_S: Final = 1.0
_EARLY_S: Final = 1.1  # a timer counts whole seconds


class Invariants:
    """All checks of a world."""

    def __init__(self, world: World, groups: list[tuple[str, str, str]]) -> None:
        self._world: Final = world
        self._groups: Final = groups
        self._own: Final[list[tuple[str, Callable[[], object]]]] = []
        self._leaders: Final[dict[tuple[str, int], str]] = {}
        self._task: asyncio.Task[None] | None = None
        self._interval_s = math.inf
        self.broken: Broken | None = None

    def add(self, name: str, check: Callable[[], object]) -> None:
        """Add an invariant of the user."""
        self._own.append((name, check))

    def start(self, interval_s: float) -> None:
        """Check during the run, in intervals of virtual time; the shortest one of all calls applies."""
        self._interval_s = min(interval_s, self._interval_s)
        if self._task is None:
            self._task = self._world.loop.create_task(self._sample())

    async def _sample(self) -> None:
        offsets_s = self._world.loop.now_s
        while True:
            try:
                self._check_leaders()
                if self._world.loop.now_s - offsets_s >= _OFFSETS_S:
                    offsets_s = self._world.loop.now_s
                    self._check_all_offsets()
                self._check_own()
                if self._world.history.orderly.broken is not None:
                    raise self._world.history.orderly.broken
                if self._world.loop.errors:
                    raise Broken("no unhandled exception", self._world.loop.errors[0])
            except Broken as broken:
                self.broken = broken
                self._world.stop()
                return
            await asyncio.sleep(self._interval_s)

    def _check_all_offsets(self) -> None:
        for name in self._names():
            leader = self.leader(name)
            if leader is not None and leader.broker is not None and leader.store is not None:
                self._check_offsets(leader)

    def _check_own(self) -> None:
        for name, check in self._own:
            try:
                result = check()
            except Broken:
                raise
            except Exception as error:
                raise Broken(name, f"{type(error).__name__}: {error}") from error
            if result is False or isinstance(result, str):
                raise Broken(name, result or "it does not hold")

    # -- leaders -------------------------------------------------------------------------------------------------------

    def _check_leaders(self) -> None:
        """Check that a single broker of a name takes messages, and that an epoch has a single leader."""
        taking: dict[str, str] = {}
        for broker in brokers_of(self._world):
            process, failover = broker.process, broker.failover
            if process is None or failover is None or not in_process(process, failover.right.is_valid):
                continue
            name = broker.broker_name
            if name in taking:
                raise Broken("one leader", f"{taking[name]} and {broker.name} take messages at the same time")
            taking[name] = broker.name
            epoch = name, failover.right.epoch
            if self._leaders.setdefault(epoch, broker.name) != broker.name:
                raise Broken("one leader", f"epoch {epoch[1]} has {self._leaders[epoch]} and {broker.name}")

    # -- the end -------------------------------------------------------------------------------------------------------

    def leader(self, broker_name: str) -> BrokerServer | None:
        """Return the broker of a name that takes messages."""
        for broker in brokers_of(self._world, broker_name):
            process = broker.process
            if process is not None and in_process(process, lambda broker=broker: broker.takes_messages):
                return broker
        return None

    def _names(self) -> list[str]:
        return list(dict.fromkeys(broker.broker_name for broker in brokers_of(self._world)))

    def is_unwell(self) -> str | None:
        """Return a text about a part that is not well yet; None for a cluster that is well."""
        if self.broken is not None:
            raise self.broken
        for name in self._names():
            leader = self.leader(name)
            if leader is None or leader.store is None:
                return f"no broker of {name} takes messages"
            end = leader.store.engine.raw.end
            if leader.store.log.readable != end:
                return f"readers of {leader.name} see the log up to {leader.store.log.readable} of {end}"
            for broker in brokers_of(self._world, name):
                if broker.store is None or broker.broker is None:
                    return f"{broker.name} does not run: {broker.last_error!r}"
                if broker.store.engine.raw.end != end:
                    return f"{broker.name} has the log up to {broker.store.engine.raw.end}, {leader.name} up to {end}"
        return self._not_visible() or self._undelivered()

    def _not_visible(self) -> str | None:
        """Return a committed or delayed message that is in no queue yet."""
        expected = dict.fromkeys(self._world.history.expected)
        if not expected:
            return None
        there: set[tuple[str, bytes]] = set()
        for name in self._names():
            leader = self.leader(name)
            if leader is None or leader.store is None:
                continue
            for topic in dict.fromkeys(topic for topic, _ in expected):
                there.update((topic, body) for body in self._stored(leader.store, topic))
        missing = [row for row in expected if row not in there]
        if self._world.history.has_clock_jumped:  # a due time is of the wall clock of then
            missing = [row for row in missing if row[1] not in self._world.history.due_s]
        return f"{missing[0][1]!r} of topic {missing[0][0]} is not visible" if missing else None

    @staticmethod
    def _stored(store: MessageStore, topic: str) -> Iterator[bytes]:
        """Yield the bodies of all visible messages of a topic."""
        for queue_id in store.queue_ids(topic):
            at, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while at < end and (messages := list(store.get(topic, queue_id, at, 256))):
                yield from (bytes(message.body) for message in messages)
                at = messages[-1].queue_offset + 1

    def _undelivered(self) -> str | None:
        history = self._world.history
        for group, topic in dict.fromkeys((group, topic) for group, topic, _ in self._groups):
            got = {
                delivery.body for delivery in history.deliveries if (delivery.group, delivery.topic) == (group, topic)
            }
            missing = [sent for sent in history.promised if sent.topic == topic and sent.body not in got]
            dead = set(self._dead_letters(group)) if missing else set()
            for sent in missing:
                if sent.body not in dead:
                    return f"group {group} has not got {sent.body!r} of {sent.place}"
        return None

    def _dead_letters(self, group: str) -> Iterator[bytes]:
        """Yield the bodies of all dead letters of a group."""
        for name in self._names():
            leader = self.leader(name)
            if leader is not None and leader.store is not None:
                yield from self._stored(leader.store, DLQ_PREFIX + group)

    def _check_dead_letters(self) -> None:
        """Check that each dead letter has had all its deliveries."""
        history = self._world.history
        for group, deliveries in history.deliveries_max.items():
            for body in self._dead_letters(group):
                tries = sum(delivery.body == body and delivery.group == group for delivery in history.begun)
                if tries < deliveries:
                    text = f"{body!r} of {group}: {tries} of {deliveries} deliveries"
                    raise Broken("no message is given up early", text)

    def check_all(self) -> None:
        """Check everything. Raises: Broken."""
        self._check_leaders()
        self._check_own()
        for name in self._names():
            leader = self.leader(name)
            assert leader is not None
            assert leader.store is not None
            self._check_logs(leader, leader.store)
            for broker in brokers_of(self._world, name):
                assert broker.store is not None
                self._check_messages(broker, broker.store)
            self._check_offsets(leader)
        jumped = self._world.history.has_clock_jumped
        for delivery in self._world.history.begun:
            due_s = self._world.history.due_s.get(delivery.body, 0.0)
            if delivery.at_s < due_s - _EARLY_S and not jumped:
                raise Broken("no delay is cut short", f"{delivery} was due at {due_s:.3f} s")
            if delivery.body not in self._world.history.attempts.get(delivery.topic, ()):
                raise Broken("nothing invented", f"{delivery} was never sent")
        self._check_dead_letters()
        if not jumped:
            self._check_pops()

    def _check_pops(self) -> None:
        """Check that no message was given out again while invisible, or behind an ack in time."""
        history = self._world.history
        of_message: dict[tuple[str, str, bytes], list[Pop]] = {}
        for pop in history.pops:
            if pop.body not in history.attempts.get(pop.topic, ()):
                raise Broken("nothing invented", f"{pop} was never sent")
            of_message.setdefault((pop.group, pop.topic, pop.body), []).append(pop)
        for pops in of_message.values():
            for first, second in itertools.permutations(pops, 2):
                was_killed = any(at_s < max(first.got_s, second.got_s) for at_s in history.kills_s)
                if first.hides(second) and not was_killed:  # behind a kill, messages of then may be in two batches
                    if self._was_sent_twice(first):
                        continue
                    name = "acked once" if first.is_acked else "invisible for a time"
                    raise Broken(name, f"{first}, and meanwhile {second}")

    def _was_sent_twice(self, pop: Pop) -> bool:
        """Return whether a retry of the producer may have stored the message twice."""
        stored = 0
        for name in self._names():
            leader = self.leader(name)
            assert leader is not None
            assert leader.store is not None
            stored += sum(body == pop.body for body in self._stored(leader.store, pop.topic))
        return stored > 1

    def _check_logs(self, leader: BrokerServer, store: MessageStore) -> None:
        """Check that all brokers of the name have the same log."""
        for broker in brokers_of(self._world, leader.broker_name):
            if broker is leader:
                continue
            assert broker.store is not None
            first = max(0, store.engine.raw.min_offset, broker.store.engine.raw.min_offset)
            end = min(store.engine.raw.end, broker.store.engine.raw.end)
            while first < end:
                size = min(_PIECE, end - first)
                mine, theirs = _bytes(store, first, size), _bytes(broker.store, first, size)
                common = min(len(mine), len(theirs))
                if mine[:common] != theirs[:common]:
                    at = first + next(i for i in range(common) if mine[i] != theirs[i])
                    raise Broken("one log", f"{leader.name} and {broker.name} differ at {at}")
                first += max(1, common)

    def _check_messages(self, broker: BrokerServer, store: MessageStore) -> None:
        """Check queues: no hole, nothing invented, and every promised message in place."""
        history = self._world.history
        stored: dict[Place, bytes] = {}
        seen: dict[bytes, Place] = {}
        for topic, bodies in history.attempts.items():
            for queue_id in store.queue_ids(topic):
                at = store.min_offset(topic, queue_id)
                end = store.max_offset(topic, queue_id)
                while at < end:
                    try:
                        result = store.get(topic, queue_id, at, 256)
                    except MqfastError as error:
                        raise Broken(
                            "queues are whole", f"{broker.name} {topic}/{queue_id} at {at}: {error}"
                        ) from error
                    messages = list(result)
                    if not messages:
                        raise Broken("queues are whole", f"{broker.name} {topic}/{queue_id}: nothing at {at} of {end}")
                    for message in messages:
                        body, place = bytes(message.body), Place(broker.broker_name, topic, queue_id, at)
                        if message.queue_offset != at:
                            raise Broken(
                                "queues are whole",
                                f"{broker.name} {topic}/{queue_id}: expected offset {at}, found {message.queue_offset}",
                            )
                        if body not in bodies:
                            raise Broken("nothing invented", f"{broker.name} {topic}/{queue_id}/{at}: {body!r}")
                        if body in history.withdrawn:
                            raise Broken("rolled back", f"{broker.name} {topic}/{queue_id}/{at}: {body!r} is visible")
                        if body in history.once:
                            if body in seen:
                                raise Broken("stored once", f"{broker.name} {topic}: {body!r} at {seen[body]}, {place}")
                            seen[body] = place
                        stored[place] = body
                        at += 1
        for sent in history.promised:
            if sent.place.broker != broker.broker_name or sent.place.offset < store.min_offset(*sent.place[1:3]):
                continue
            body_there = stored.get(sent.place)
            if body_there is None and broker.takes_messages is False:
                continue  # a slave shows what its master has confirmed; the logs were compared
            if body_there != sent.body:
                raise Broken(
                    "nothing acknowledged is lost",
                    f"{sent.body!r} was answered 0 at {sent.at_s:.3f} s as {sent.place}; {broker.name} has "
                    f"{body_there!r}",
                )

    def _check_offsets(self, leader: BrokerServer) -> None:
        """Check that no group has committed an offset in front of a message that no handler has ended."""
        broker = leader.broker
        assert broker is not None
        ended: dict[tuple[str, str, int], set[int]] = {}
        whole = {known[:2] for known in self._groups}
        for delivery in self._world.history.ended:
            if delivery.broker == leader.broker_name and (delivery.group, delivery.topic) in whole:
                place = delivery.group, delivery.queue_topic, delivery.queue_id
                ended.setdefault(place, set()).add(delivery.offset)
        for (group, topic, queue_id), offsets in ended.items():
            committed = broker.context.offsets.get(group, topic, queue_id)
            for offset in range(min(offsets), committed or 0):
                if offset not in offsets:
                    raise Broken(
                        "no message is skipped",
                        f"group {group} has committed {committed} of {topic}/{queue_id}, and {offset} was not handled",
                    )


def _bytes(store: Any, offset: int, size: int) -> bytes:
    return b"".join(bytes(view) for view in store.engine.raw.read(offset, size, unflushed=True))

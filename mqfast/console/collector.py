"""The collector: a task that asks every broker a fixed number of requests in a round, and keeps the result.

A round has four requests for each broker, and a limited sample of topics and groups: the number of requests does not
grow with topics or groups. Must never take more than a twentieth of a core: a slow round is followed by a longer
pause. Numbers of a broker that did not answer are unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Iterable, Mapping
from itertools import islice
from typing import Final, TypeVar

from mqfast.console.ages import UnreadAges
from mqfast.console.breath import Breath
from mqfast.console.broker_wide import BrokerWideClient, GroupSettings, QueuePlace, read_places
from mqfast.console.history import History
from mqfast.console.members import Members, MemberState
from mqfast.console.state import (
    NOT_YET,
    BrokerState,
    ClusterState,
    GroupState,
    Number,
    TopicState,
    Unknown,
    is_topic_of_users,
    known,
)
from mqfast.console.values import clock_text
from mqfast.errors import MqfastError
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX
from mqfast.remoting.bodies import TopicConfigBody
from mqfast.util.log_limit import LogLimit

__all__ = ["Collector"]

T = TypeVar("T")
_SAMPLE: Final = 16  # topics, topics of dead letters, and groups, that a round asks for
_WORST: Final = 8  # groups with the largest lag, that a round asks for exact ages and members
_STUCK: Final = 3  # groups with the largest lag, whose members a round asks for held messages
_SLOW_EVERY: Final = 3  # rounds between two reads of the settings of topics and groups
_CPU_PAUSES: Final = 19.0  # a pause is so many times the processor time of the round: 5 % of a core
_BROKER_PAUSES: Final = 3.0  # and so many times the duration, in which brokers work
_LOST_S: Final = 3600.0
_REGISTRATION: Final = "registration"


class Collector:
    """Collects the state of all clusters that the name servers know. Thread: that of the event loop.

    Attributes: state: of the last round; history: an hour of rates and lags; rounds: number of finished rounds; stuck:
        the members of the latest groups, by group.
    Args: admin: used for all requests; members: asks members; interval_s: seconds from round to round at least.
    """

    def __init__(
        self,
        admin: BrokerWideClient,
        members: Members,
        interval_s: float = 10.0,
        *,
        history: History | None = None,
    ) -> None:
        self.state = ClusterState()
        self.history = history or History(interval_s)
        self.rounds = 0
        self.stuck: dict[str, list[MemberState]] = {}
        self._admin = admin
        self._members = members
        self._interval_s = interval_s
        self._ages = UnreadAges()
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._topics: dict[str, Mapping[str, TopicConfigBody]] = {}
        self._groups: dict[str, Mapping[str, GroupSettings]] = {}
        self._next_topic = self._next_letters = self._next_group = ""
        self._lost: dict[str, float] = {}
        self._requests = 0
        self._breath = Breath()
        self._one_round = asyncio.Lock()
        self._log = LogLimit(logging.getLogger("mqfast.console"))

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="mqfast console collector")

    async def stop(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def wait_for_round(self, number: int) -> None:
        """Wait until so many rounds have finished."""
        while self.rounds < number:
            await self._changed.wait()

    async def _run(self) -> None:
        while True:
            started, started_cpu = time.monotonic(), time.process_time()
            await self.collect()
            took, cpu = time.monotonic() - started, time.process_time() - started_cpu
            await asyncio.sleep(max(self._interval_s - took, cpu * _CPU_PAUSES, took * _BROKER_PAUSES))

    async def collect(self) -> None:
        """Make a round, after one that is under way."""
        async with self._one_round:
            await self._collect()

    async def _collect(self) -> None:
        started, self._requests = time.monotonic(), 0
        before = self.state
        state = ClusterState(at_s=time.time())
        try:
            self._requests += 1
            clusters = await self._admin.all_brokers()
        except MqfastError as error:
            self._log.warning("round", "the name servers did not answer: %s", error)
            state = before
            state.error = str(error)
        else:
            brokers = clusters.brokers.values()
            state.brokers = {
                broker.name: BrokerState(broker.name, broker.cluster, broker.addresses) for broker in brokers
            }
            progress = await asyncio.gather(*(self._ask_broker(broker) for broker in state.brokers.values()))
            self._keep_lost(state, before)
            self._forget_others(state.brokers)
            state.reserve_names()
            await self._add_topics(state, before)
            await self._add_groups(state, before, [places for places in progress if places is not None])
            await self._sample(state)
            await self._record(state)
        state.took_s, state.requests = time.monotonic() - started, self._requests
        self.state = state
        self.rounds += 1
        self._changed.set()
        self._changed = asyncio.Event()

    # --- the requests of a broker ---

    async def _ask_broker(self, broker: BrokerState) -> Mapping[str, list[QueuePlace]] | None:
        """Ask a broker. Returns: the places of its groups; None: unknown."""
        address, admin = broker.address, self._admin
        runtime = await self._asked(broker, "state", admin.runtime_at(address))
        broker.runtime = Unknown(broker.errors["state"]) if runtime is None else runtime
        # Each broker has its turn, so that rounds are of equal length.
        if broker.name not in self._topics or (self.rounds + len(broker.name)) % _SLOW_EVERY == 0:
            topics = await self._asked(broker, "topics", admin.topics_at(address))
            groups = await self._asked(broker, "groups", admin.groups_at(address))
            if topics is not None:
                self._topics[broker.name] = topics
            if groups is not None:
                self._groups[broker.name] = groups
        return await self._asked(broker, "progress", self._places_at(address))

    async def _places_at(self, address: str) -> Mapping[str, list[QueuePlace]]:
        data = await self._admin.progress_at(address)
        places: dict[str, list[QueuePlace]] = {}
        for _ in read_places(data, places):
            await self._breath.pause()
        return places

    async def _asked(self, broker: BrokerState, subject: str, answer: Awaitable[T]) -> T | None:
        """Return an answer; None, with the error in the state of the broker, where there is none."""
        self._requests += 1
        try:
            return await answer
        except MqfastError as error:
            broker.errors[subject] = str(error)
            self._log.warning(f"{broker.name} {subject}", "broker %s, %s: %s", broker.name, subject, error)
            return None

    def _keep_lost(self, state: ClusterState, before: ClusterState) -> None:
        """Keep brokers that the name servers no longer list, for an hour, with an error."""
        for name in state.brokers:
            self._lost.pop(name, None)
        for name, broker in before.brokers.items():
            if name in state.brokers:
                continue
            since_s = self._lost.setdefault(name, state.at_s)
            if state.at_s - since_s < _LOST_S:
                text = f"the name servers do not list the broker since {clock_text(since_s)} UTC"
                lost = BrokerState(name, broker.cluster, broker.addresses, Unknown(text), {_REGISTRATION: text})
                state.brokers[name] = lost

    def _forget_others(self, brokers: Mapping[str, BrokerState]) -> None:
        for table in (self._topics, self._groups):
            for name in [name for name in table if name not in brokers]:
                del table[name]

    # --- topics and groups of all brokers ---

    async def _add_topics(self, state: ClusterState, before: ClusterState) -> None:
        for broker, topics in self._topics.items():
            for name, settings in topics.items():
                await self._breath.pause()
                topic = state.topics.get(name)
                if topic is None:
                    topic = state.topics[name] = TopicState(name)
                    old = before.topics.get(name)
                    if old is not None:
                        topic.rate, topic.messages = old.rate, old.messages
                        topic.measured_s, topic.ends = old.measured_s, old.ends
                topic.settings[broker] = settings

    async def _add_groups(
        self, state: ClusterState, before: ClusterState, progress: Iterable[Mapping[str, list[QueuePlace]]]
    ) -> None:
        for table in self._groups.values():
            for name, settings in table.items():
                state.groups.setdefault(name, GroupState(name)).settings = settings
        for places_of in progress:
            for name, places in places_of.items():
                await self._breath.pause()
                state.groups.setdefault(name, GroupState(name)).places.extend(places)
        silent = {}
        for name, broker in state.brokers.items():
            if error := broker.errors.get("progress") or broker.errors.get(_REGISTRATION):
                silent[name] = error
        ends: dict[str, dict[tuple[str, int], int]] = {}
        for group in state.groups.values():
            await self._breath.pause()
            self._measure(group, before, state, silent)
            for place in group.places:
                ends.setdefault(place.topic, {})[place.broker, place.queue_id] = place.max_offset
            for topic_name in {place.topic for place in group.places}:
                if topic_name in state.topics:
                    state.topics[topic_name].groups.append(group.name)
        for topic_name, queue_ends in ends.items():
            await self._breath.pause()
            if topic_name in state.topics and not silent:
                self._set_ends(state.topics[topic_name], queue_ends, state.at_s)
        self._ages.keep_only(state.groups)

    def _measure(self, group: GroupState, before: ClusterState, state: ClusterState, silent: Mapping[str, str]) -> None:
        old = before.groups.get(group.name)
        if old is not None:
            group.members, group.members_s = old.members, old.members_s
        group.brokers = {place.broker for place in group.places}
        if old is not None:
            group.brokers |= old.brokers & silent.keys()
        causes = [error for name, error in silent.items() if old is None or name in group.brokers]
        if causes:
            group.lag = group.age_s = group.rate = Unknown("; ".join(causes))
            return
        if not group.places:
            group.lag = group.age_s = group.rate = Unknown("the group has not committed an offset yet")
            return
        group.lag = sum(place.behind for place in group.places)
        group.age_s, group.age_is_least = self._ages.of(
            group, state.at_s, is_new=old is None or isinstance(old.lag, Unknown)
        )
        passed_s = state.at_s - before.at_s
        if old is None or isinstance(old.lag, Unknown) or not before.at_s or passed_s <= 0:
            return
        then = {(place.topic, place.broker, place.queue_id): place.committed for place in old.places}
        moved = sum(
            max(0, place.committed - then.get((place.topic, place.broker, place.queue_id), place.committed))
            for place in group.places
        )
        group.rate = moved / passed_s

    @staticmethod
    def _set_ends(topic: TopicState, ends: dict[tuple[str, int], int], now_s: float) -> None:
        old, passed_s = topic.ends, now_s - topic.measured_s
        if old and topic.measured_s and passed_s > 0 and old.keys() == ends.keys():
            topic.rate = sum(max(0, end - old[queue]) for queue, end in ends.items()) / passed_s
        topic.ends, topic.measured_s = ends, now_s

    # --- a limited number of topics and groups ---

    async def _sample(self, state: ClusterState) -> None:
        letters = _turn([name for name in state.topics if name.startswith(DLQ_PREFIX)], self._next_letters, _SAMPLE)
        others = [name for name in state.topics if is_topic_of_users(name) or name.startswith(RETRY_PREFIX)]
        topics = _turn(others, self._next_topic, _SAMPLE)
        self._next_letters, self._next_topic = letters[-1] if letters else "", topics[-1] if topics else ""
        worst = state.groups_behind(_WORST)
        turn = _turn(list(state.groups), self._next_group, _SAMPLE)
        self._next_group = turn[-1] if turn else ""
        asked = {group.name: group for group in (*worst, *(state.groups[name] for name in turn))}
        await asyncio.gather(
            *(self._ask_topic(state, state.topics[name]) for name in (*letters, *topics)),
            *(self.ask_members(state, group) for group in asked.values()),
            *(self.ask_ages(state, group) for group in worst),
        )
        stuck = {}
        for group in worst[:_STUCK]:
            self._requests += int(known(group.member_count))
            members = await self._members.of(group)
            if isinstance(members, list):
                stuck[group.name] = members
        self.stuck = stuck

    async def _ask_topic(self, state: ClusterState, topic: TopicState) -> None:
        ends: dict[tuple[str, int], int] = {}
        count = 0
        for name in topic.settings:
            broker = state.brokers[name]
            if _REGISTRATION in broker.errors:
                topic.messages = topic.rate = Unknown(broker.errors[_REGISTRATION])
                return
            stats = await self._asked(broker, "queues", self._admin.queues_at(broker.address, topic.name))
            if stats is None:
                topic.messages = Unknown(broker.errors["queues"])
                return
            for queue, item in stats.items():
                ends[queue.broker_name, queue.queue_id] = item.max_offset
                count += item.max_offset - item.min_offset
        topic.messages = count
        if not topic.groups:  # else the progress of the groups has the ends
            self._set_ends(topic, ends, time.time())

    async def ask_members(self, state: ClusterState, group: GroupState) -> None:
        """Read the members of a group from all brokers."""
        brokers = [broker for broker in state.brokers.values() if _REGISTRATION not in broker.errors]
        bodies = await asyncio.gather(
            *(self._asked(broker, "members", self._admin.members_of(broker.address, group.name)) for broker in brokers)
        )
        members = {}
        for broker, body in zip(brokers, bodies, strict=True):
            if body is None:
                group.members = Unknown(broker.errors["members"])
                return
            members[broker.name] = body
        group.members, group.members_s = members, time.time()
        if missing := group.topics_without_offset() & state.topics.keys():
            group.lag = group.age_s = Unknown(f"no offset was committed yet in {', '.join(sorted(missing))}")

    async def ask_missing(self, state: ClusterState, group: GroupState) -> None:
        """Read the lag of a group in the topics that members subscribe to and that have no committed offset yet."""
        try:
            for topic in sorted(group.topics_without_offset() & state.topics.keys()):
                for queue, lag in (await self._admin.lag(group.name, topic)).items():
                    end = lag.committed + lag.behind
                    group.places.append(QueuePlace(topic, queue.broker_name, queue.queue_id, end, lag.committed, 0))
        except MqfastError as error:
            group.lag = group.age_s = Unknown(str(error))
        else:
            if group.places:
                group.lag = sum(place.behind for place in group.places)

    async def ask_ages(self, state: ClusterState, group: GroupState) -> None:
        """Read the exact age of the first unread message of a group, in its topic with the largest lag."""
        lags: dict[tuple[str, str], int] = {}
        for place in group.places:
            lags[place.topic, place.broker] = lags.get((place.topic, place.broker), 0) + place.behind
        worst = sorted(lags.items(), key=lambda pair: -pair[1])[:4]
        asked = [(topic, state.brokers[name]) for (topic, name), lag in worst if lag and name in state.brokers]
        answers = await asyncio.gather(
            *(
                self._asked(broker, "ages", self._admin.ages_at(broker.address, group.name, topic))
                for topic, broker in asked
            )
        )
        ages = [age / 1000 for answer in answers if answer is not None for age in answer.values()]
        if ages and None not in answers:
            group.age_s, group.age_is_least = max(ages), False

    # --- history ---

    async def _record(self, state: ClusterState) -> None:
        values: dict[tuple[str, str], float] = {}

        def add(kind: str, name: str, number: Number) -> None:
            if not isinstance(number, Unknown):
                values[kind, name] = float(number)

        for broker in state.brokers.values():
            add("in", broker.name, broker.number("putTps"))
            add("out", broker.name, broker.number("getTransferredTps"))
            add("disk", broker.name, broker.number("commitLogDiskRatio"))
            add("p99", broker.name, broker.number("putLatency99"))
        for group in state.groups.values():
            await self._breath.pause()
            add("lag", group.name, group.lag)
            add("age", group.name, group.age_s)
        for topic in state.topics.values():
            await self._breath.pause()
            if topic.rate is not NOT_YET:
                add("rate", topic.name, topic.rate)
        ages = [known(group.age_s) for group in state.groups.values() if not isinstance(group.age_s, Unknown)]
        if ages or not state.groups:
            values["worst", ""] = max(ages, default=0.0)
        self.history.add(state.at_s, values)


def _turn(names: list[str], last: str, count: int) -> list[str]:
    """Return the next names behind the last one, in the order of names; from the start at the end."""
    ordered = sorted(names)
    behind = list(islice((name for name in ordered if name > last), count))
    return behind + ordered[: max(0, min(count, len(ordered)) - len(behind))]

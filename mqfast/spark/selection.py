"""The messages that a read selects: topics and queues, and the first and last offset of each queue.

Works on one snapshot, for batches and for the first offsets of a stream. Offsets by time and of groups come through
``Backend``. A named topic or queue is never left out: an unknown name is an error with the nearest name. Imports
neither Spark nor Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mqfast.errors import ConfigError, DataLoss
from mqfast.message import LMQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS
from mqfast.spark.options import Bound, Options, nearest_name
from mqfast.spark.plan import OffsetRange, Queue, Selection, Snapshot

if TYPE_CHECKING:
    from mqfast.spark.backend import Backend

__all__ = [
    "HIDDEN_TOPICS", "check_names", "check_pattern", "ending_offsets", "is_hidden", "is_left_out", "left_out_topics",
    "present", "readable", "select", "selected_queues", "starting_offsets", "wants_queue",
]  # fmt: skip

Key = tuple[str, int]
# Topics that a broker writes for itself: half messages, delayed messages, broker state; and messages of retry topics,
# which are in their own topic as well.
HIDDEN_TOPICS: Final = (*SYSTEM_TOPICS, f"{RETRY_PREFIX}*")


def selected_queues(snapshot: Snapshot, options: Options) -> list[Queue]:
    """Return the queues that subscribe, assign or subscribePattern name; without these, all but light queues.

    System topics are included if named, or with includeSystemTopics. Unreadable queues are included, see ``readable``.

    Raises: ConfigError for a missing topic or queue.
    """
    queues = snapshot.queues
    if options.subscribe is not None:
        topics = sorted({q.topic for q in queues} | snapshot.topics)
        for name in options.subscribe:
            if name not in topics:
                raise ConfigError(f"option subscribe: the store has no topic {name}{nearest_name(name, topics)}")
        return [q for q in queues if q.topic in options.subscribe]
    if options.assign is not None:
        known = {(q.topic, q.queue_id): q for q in queues}
        names = [f"{topic}/{queue_id}" for topic, queue_id in known]
        for topic, queue_id in options.assign:
            if (topic, queue_id) not in known:
                name = f"{topic}/{queue_id}"
                raise ConfigError(f"option assign: the store has no queue {name}{nearest_name(name, names)}")
        return [known[key] for key in options.assign]
    if options.subscribe_pattern is not None:
        matching = [q for q in queues if options.subscribe_pattern.fullmatch(q.topic)]
        return [q for q in matching if not is_left_out(options, q.topic)]
    return [q for q in queues if not q.is_light and not is_left_out(options, q.topic)]


def readable(queues: Iterable[Queue]) -> list[Queue]:
    """Return the queues whose messages can be read now; consumers leave out the others as well."""
    return [q for q in queues if q.is_readable]


def check_names(
    snapshots: Iterable[Snapshot], options: Options, others: Callable[[Options], Iterable[str]] | None = None
) -> None:
    """Refuse a named topic or queue that none of several stores has.

    Args: others: topics without a snapshot, for the nearest name.
    Raises: ConfigError.
    """
    queues: dict[Key, Queue] = {}
    snapshots = list(snapshots)
    for queue in (q for snapshot in snapshots for q in snapshot.queues):
        if queue.is_readable or (queue.topic, queue.queue_id) not in queues:
            queues[queue.topic, queue.queue_id] = queue
    topics_there = frozenset[str]().union(*(snapshot.topics for snapshot in snapshots))
    missing = set(options.subscribe or ()) - {topic for topic, _ in queues} - topics_there
    if missing and others is not None:
        name, topics = sorted(missing)[0], list(others(options))
        if topics and name not in topics:
            raise ConfigError(f"option subscribe: the cluster has no topic {name}{nearest_name(name, topics)}")
    every = Snapshot("", "", 0, 0, 0, tuple(queues[key] for key in sorted(queues)), topics=topics_there)
    selected = selected_queues(every, options)
    for queue in selected:
        if options.assign is not None and not queue.is_readable and options.view == "messages":
            raise ConfigError(
                f"option assign: queue {queue.topic}/{queue.queue_id} cannot be read now: its topic has fewer queues "
                "for reading, or no permission to read"
            )
    for way in ("starting", "ending"):
        _check_named(getattr(options, f"{way}_offsets_by_timestamp") or (), selected, f"{way}OffsetsByTimestamp")
    check_pattern(every, options)


def present(snapshot: Snapshot, options: Options) -> Options:
    """Return the options without the named topics and queues that a store does not have."""
    known = {(q.topic, q.queue_id) for q in snapshot.queues}
    topics = {topic for topic, _ in known} | snapshot.topics
    options = replace(
        options,
        starting_offsets_by_timestamp=_present(options.starting_offsets_by_timestamp, known),
        ending_offsets_by_timestamp=_present(options.ending_offsets_by_timestamp, known),
    )
    if options.subscribe is not None:
        return replace(options, subscribe=tuple(topic for topic in options.subscribe if topic in topics))
    if options.assign is not None:
        return replace(options, assign=tuple(place for place in options.assign if place in known))
    return options


def _present(times: Mapping[Key, int] | None, known: Container[Key]) -> dict[Key, int] | None:
    return None if times is None else {place: moment for place, moment in times.items() if place in known}


def check_pattern(snapshot: Snapshot, options: Options) -> None:
    """Refuse a pattern that matches system topics only, which would read nothing.

    Raises: ConfigError.
    """
    pattern = options.subscribe_pattern
    if pattern is not None and not options.include_system_topics:
        topics = {q.topic for q in snapshot.queues if pattern.fullmatch(q.topic)}
        if topics and all(is_hidden(topic) for topic in topics):
            raise ConfigError(
                f"option subscribePattern: only system topics fit ({sorted(topics)[0]}): name them in subscribe, or "
                "set includeSystemTopics=true"
            )


def is_hidden(topic: str) -> bool:
    """Return whether a topic is left out unless the options name it."""
    return _fits(topic, HIDDEN_TOPICS)


def left_out_topics(options: Options) -> tuple[str, ...]:
    """Return the topics that are read only if subscribe or assign names them; ``x*`` is a prefix."""
    hidden = () if options.include_system_topics else HIDDEN_TOPICS
    return (*hidden, *(options.exclude_topics or ()))


def is_left_out(options: Options, topic: str) -> bool:
    """Return whether a topic is one of ``left_out_topics``."""
    return _fits(topic, left_out_topics(options))


def _fits(topic: str, names: Iterable[str]) -> bool:
    return any(topic == name or (name[-1] == "*" and topic.startswith(name[:-1])) for name in names)


def wants_queue(options: Options, topic: str, queue_id: int | None = None) -> bool:
    """Return whether the options select this topic, and this queue if given, present or not.

    The rule of ``selected_queues``.
    """
    if options.subscribe is not None:
        return topic in options.subscribe
    if options.assign is not None:
        return any(topic == name and queue_id in (None, number) for name, number in options.assign)
    if is_left_out(options, topic):
        return False
    if options.subscribe_pattern is not None:
        return options.subscribe_pattern.fullmatch(topic) is not None
    return not topic.startswith(LMQ_PREFIX)


def starting_offsets(
    snapshot: Snapshot, queues: Iterable[Queue], options: Options, access: Backend, default: str
) -> dict[Key, int]:
    """Return the first offset of each queue, within its bounds; ``default`` is earliest or latest.

    A named offset may be beyond the end of a slave that stands in for its master.

    Raises: ConfigError for a missing queue or, with strategy error, for a queue without a message from the time on;
        DataLoss for an offset below the bounds.
    """
    by_time = options.starting_offsets_by_timestamp
    first_offsets = _resolve(
        snapshot, queues, options, access, default, "starting",
        options.starting_offsets, options.starting_timestamp, by_time,
    )  # fmt: skip
    if options.starting_offsets_by_timestamp_strategy == "error":
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            timed = options.starting_timestamp is not None or key in (by_time or {})
            if timed and first_offsets[key] >= queue.max_offset:
                raise ConfigError(f"option startingTimestamp: queue {key[0]}/{key[1]} has no message from then on")
    return first_offsets


def ending_offsets(snapshot: Snapshot, queues: Iterable[Queue], options: Options, access: Backend) -> dict[Key, int]:
    """Return the end of each queue, exclusive, within its bounds.

    Raises: as starting_offsets.
    """
    return _resolve(
        snapshot, queues, options, access, "latest", "ending",
        options.ending_offsets, options.ending_timestamp, options.ending_offsets_by_timestamp,
    )  # fmt: skip


def _resolve(
    snapshot: Snapshot,
    queues: Iterable[Queue],
    options: Options,
    access: Backend,
    default: str,
    way: str,
    bound: Bound | None,
    timestamp: int | None,
    timestamps: Mapping[Key, int] | None,
) -> dict[Key, int]:
    queues = list(queues)
    # Queues that neither the JSON nor the group has an offset of count as unread.
    rest = "earliest" if way == "starting" else "latest"
    bound = bound or Bound(word=default if timestamps is None else rest)
    named = {*(() if bound.of_archive else bound.by_queue or ()), *(timestamps or ())}
    _check_named(named, queues, f"{way}Offsets" if bound.by_queue else f"{way}OffsetsByTimestamp")
    groups: dict[Key, int] = {}
    if options.group is not None:
        groups = access.group_offsets(options.group, [(q.topic, q.queue_id) for q in queues])
    offsets: dict[Key, int] = {}
    for q in queues:
        key = (q.topic, q.queue_id)
        moment = (timestamps or {}).get(key, timestamp)
        if moment is None and bound.back_ms is not None:
            moment = snapshot.taken_ms - bound.back_ms
        if moment is not None:
            offset = access.offset_by_time(q.topic, q.queue_id, moment)
        elif bound.back_count is not None:
            offset = q.max_offset - bound.back_count
        else:
            wanted: int | str | None = bound.word
            if bound.by_queue is not None:
                wanted = bound.by_queue.get(key, bound.others if bound.others is not None else rest)
            if wanted == "group":
                wanted = groups.get(key, "earliest")
            offset = q.min_offset if wanted == "earliest" else q.max_offset if wanted == "latest" else int(wanted or 0)
            if isinstance(wanted, int):
                if snapshot.may_lag and way == "starting" and offset > q.max_offset:
                    offsets[key] = offset  # the slave is behind; no message before the offset is selected
                    continue
                _check_offset(q, offset, way, options.fail_on_data_loss)
        offsets[key] = min(max(offset, q.min_offset), q.max_offset)
    return offsets


def _check_named(named: Iterable[Key], queues: list[Queue], option: str) -> None:
    known = {(q.topic, q.queue_id) for q in queues}
    for key in sorted(set(named) - known):
        name = f"{key[0]}/{key[1]}"
        near = nearest_name(name, [f"{topic}/{queue_id}" for topic, queue_id in known])
        raise ConfigError(f"option {option}: queue {name} is not among those that are read{near}")


def _check_offset(queue: Queue, offset: int, way: str, fail: bool) -> None:
    """Raise DataLoss for an offset outside of the queue: messages were lost, or the offset is of another store."""
    if fail and not queue.min_offset <= offset <= queue.max_offset:
        raise DataLoss(
            f"{way} offset {offset} of queue {queue.topic}/{queue.queue_id}: expected {queue.min_offset} to "
            f"{queue.max_offset}, which is what the store has; failOnDataLoss=false reads what is there"
        )


def select(snapshot: Snapshot, options: Options, access: Backend) -> Selection:
    """Return the messages that a batch reads.

    Raises: ConfigError, DataLoss.
    """
    check_pattern(snapshot, options)
    queues = selected_queues(snapshot, options)
    given = (
        options.subscribe, options.assign, options.subscribe_pattern,
        options.starting_offsets, options.starting_timestamp, options.starting_offsets_by_timestamp,
        options.ending_offsets, options.ending_timestamp, options.ending_offsets_by_timestamp,
    )  # fmt: skip
    if all(value is None for value in given):
        whole = (OffsetRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in readable(queues))
        return Selection(tuple(whole), whole=True)
    start = starting_offsets(snapshot, queues, options, access, "earliest")
    end = ending_offsets(snapshot, queues, options, access)
    places = [(q.topic, q.queue_id) for q in readable(queues)]
    ranges = (OffsetRange(topic, queue_id, start[topic, queue_id], end[topic, queue_id]) for topic, queue_id in places)
    return Selection(tuple(r for r in ranges if r.start < r.end))

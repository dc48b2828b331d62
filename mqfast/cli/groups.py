"""``mqfast store groups`` and ``reset-offsets``: progress of consumer groups, and a reset of offsets.

A reset shows a plan. With ``--yes`` the plan is computed again under the store's lock and applied. Offsets stay within
the queue.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.cli.arguments import Commands, add_confirmation, add_ends, time_ms, whole
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output
from mqfast.cli.stores import known_queues, near, reader_of
from mqfast.errors import OffsetError, UsageError

if TYPE_CHECKING:
    from mqfast.store.reader.store_reader import QueueRange, StoreReader

__all__ = ["add_commands"]

_PERSISTED: Final = "A writer puts offsets on disk every five seconds and at close; what is there is shown."


def add_commands(commands: Commands) -> None:
    """Add ``groups`` and ``reset-offsets``."""
    show = commands.add(groups, "list consumer groups with their offsets and lag", more=_PERSISTED)
    show.add_argument("groups", metavar="GROUP", nargs="*", help="only these (default: every group)")

    change = commands.add(
        reset_offsets,
        "set the offsets of a consumer group anew",
        name="reset-offsets",
        more="Shows what would change; --yes does it, while no other process has the store open for writing.",
    )
    change.add_argument("group", metavar="GROUP")
    change.add_argument("topic", metavar="TOPIC")
    change.add_argument("--queue", type=whole, metavar="N", help="only this queue (default: all queues of the topic)")
    to = change.add_mutually_exclusive_group(required=True)
    add_ends(to)
    to.add_argument(
        "--to-time",
        type=time_ms,
        metavar="TIME",
        help="the first message stored at this time or later (ms or ISO 8601)",
    )
    to.add_argument("--to-offset", type=whole, metavar="N", help="this queue offset")
    add_confirmation(change, "--apply")


class _Lag(NamedTuple):
    """One queue of a group; ``offset`` is None without a committed offset."""

    group: str
    topic: str
    queue_id: int
    offset: int | None
    first: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - max(self.first, self.offset or 0))


def _lags(reader: StoreReader, group: str) -> list[_Lag]:
    """Return every queue of every topic with an offset of a group."""
    offsets = reader.consumer_offsets(group)
    queues = {(queue.topic, queue.queue_id): queue for queue in reader.queues()}
    lags = []
    for topic in sorted(offsets):
        ids = {queue_id for name, queue_id in queues if name == topic} | set(offsets[topic])
        for queue_id in sorted(ids):
            queue = queues.get((topic, queue_id))
            first, end = (queue.min_offset, queue.max_offset) if queue else (0, 0)
            lags.append(_Lag(group, topic, queue_id, offsets[topic].get(queue_id), first, end))
    return lags


def groups(arguments: argparse.Namespace) -> ExitCode:
    """List groups."""
    out = Output(arguments.json)
    with reader_of(arguments) as reader:
        known = reader.consumer_groups()
        _check_groups(reader, arguments.groups, known)
        lags = [lag for group in arguments.groups or known for lag in _lags(reader, group)]
    if out.as_json:
        for lag in lags:
            row = dict(zip(("group", "topic", "queueId", "offset", "minOffset", "maxOffset"), lag, strict=True))
            out.json({**row, "lag": lag.lag})
    elif lags:
        rows = [(lag.group, lag.topic, lag.queue_id, _shown(lag.offset), lag.first, lag.end, lag.lag) for lag in lags]
        out.table(("group", "topic", "queue", "offset", "min", "max", "lag"), rows)
    else:
        out.note(f"no consumer group in {arguments.path}")
    for lag in lags:
        if lag.offset is not None and not lag.first <= lag.offset <= lag.end:
            gone = "were deleted before they were read" if lag.offset < lag.first else "are not in the store"
            last = lag.first if lag.offset < lag.first else lag.offset
            start = lag.offset if lag.offset < lag.first else lag.end
            out.note(f"group {lag.group}: messages {start} to {last - 1} of {lag.topic}/{lag.queue_id} {gone}")
    return ExitCode.OK if lags else ExitCode.NOTHING_FOUND


def _shown(offset: int | None) -> int | str:
    return "-" if offset is None else offset


def _check_groups(reader: StoreReader, asked: Iterable[str], known: Sequence[str]) -> None:
    for group in asked:
        if group not in known:
            raise OffsetError(f"group {group}: no offsets of it in {reader.paths.root}{near(group, known)}")


class _Change(NamedTuple):
    """One queue of a plan."""

    queue_id: int
    before: int | None
    after: int
    lag: int


def _plan(
    arguments: argparse.Namespace,
    queues: Sequence[QueueRange],
    offset_by_time: Callable[[str, int, int], int],
    before: Callable[[int], int | None],
) -> list[_Change]:
    plan = []
    for queue in queues:
        if arguments.to_earliest:
            offset = queue.min_offset
        elif arguments.to_latest:
            offset = queue.max_offset
        elif arguments.to_time is not None:
            offset = offset_by_time(queue.topic, queue.queue_id, arguments.to_time)
        else:
            offset = arguments.to_offset
        if not queue.min_offset <= offset <= queue.max_offset:
            raise UsageError(
                f"--to-offset: expected {queue.min_offset} to {queue.max_offset}, as queue {queue.queue_id} of topic "
                f"{queue.topic} has; found {offset} (--queue chooses one queue)"
            )
        plan.append(_Change(queue.queue_id, before(queue.queue_id), offset, queue.max_offset - offset))
    return plan


def reset_offsets(arguments: argparse.Namespace) -> ExitCode:
    """Show a plan of a reset, or apply the plan."""
    out = Output(arguments.json)
    with reader_of(arguments) as reader:
        queues = known_queues(reader, [arguments.topic], arguments.queue)
        known = reader.consumer_groups()
        if arguments.group not in known:
            out.note(f"group {arguments.group} is new{near(arguments.group, known, others=False)}")
        offsets = reader.consumer_offsets(arguments.group).get(arguments.topic, {})
        plan = _plan(arguments, queues, reader.offset_by_time, offsets.get)
    if arguments.yes:
        plan = _apply(arguments, out)
    _tell(arguments, out, plan)
    return ExitCode.OK


def _apply(arguments: argparse.Namespace, out: Output) -> list[_Change]:
    """Compute the plan again under the store's lock, and write the offsets to disk."""
    import mqfast
    from mqfast.store.reader.bounds import QueueRange

    group, topic = arguments.group, arguments.topic
    with out.progress("recovering") as progress:
        store = mqfast.open(arguments.path, broker_conf=arguments.conf, create=False, progress=progress)
    with store:
        queues = [QueueRange(*row) for row in store.queues() if row[0] == topic and arguments.queue in (None, row[1])]

        def before(queue_id: int) -> int | None:
            offset = store.consumer_offsets.get(group, topic, queue_id)
            return None if offset < 0 else offset

        plan = _plan(arguments, queues, store.offset_by_time, before)
        for change in plan:
            store.consumer_offsets.commit(group, topic, change.queue_id, change.after)
        store.persist_offsets()
    return plan


def _tell(arguments: argparse.Namespace, out: Output, plan: Sequence[_Change]) -> None:
    if out.as_json:
        for change in plan:
            out.json(
                {
                    "group": arguments.group,
                    "topic": arguments.topic,
                    "queueId": change.queue_id,
                    "before": change.before,
                    "after": change.after,
                    "lag": change.lag,
                    "applied": arguments.yes,
                }
            )
        return
    rows = [(change.queue_id, _shown(change.before), change.after, change.lag) for change in plan]
    out.line(f"group {arguments.group}, topic {arguments.topic}", "bold")
    out.table(("queue", "before", "after", "lag then"), rows)
    out.note("done" if arguments.yes else "nothing was changed; --yes does it")

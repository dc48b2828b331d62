"""``mqfast admin``: topics, groups, offsets and brokers of a running cluster, by an AdminClient.

A command that changes or deletes stored data shows the change, and makes the change with ``--yes`` only. The client is
imported when a command runs.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli import admin_messages
from mqfast.cli.admin_commands import AdminCommands
from mqfast.cli.arguments import Parser, add_ends, name_value, time_ms, whole
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.cli.output import Output, time_text
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = ["add_commands", "print_table"]

_YES: Final = "nothing was changed; --yes does it"


def add_commands(rooms: argparse._SubParsersAction[Parser]) -> None:
    """Add ``admin``."""
    room = rooms.add_parser(
        "admin",
        help="topics, groups, offsets, messages and brokers of a running cluster",
        description="Topics, groups, offsets, messages and brokers of a running cluster: of Apache RocketMQ's brokers "
        "and of ours. Needs the extra mqfast[client].",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = AdminCommands(room.add_subparsers(title="commands", metavar="COMMAND", required=True))
    commands.add("cluster", cluster, "list clusters, brokers and their addresses")
    _add_topics(commands)
    _add_groups(commands)
    admin_messages.add_commands(commands)
    broker = commands.group("broker", "settings and state of a broker")
    for sub in (
        broker.add("config", broker_config, "show the settings of a broker, or change some", changes=True),
        broker.add("runtime", broker_runtime, "show what a broker measures of itself"),
    ):
        sub.add_argument("broker", metavar="BROKER", help="its name, or host:port")
        if sub.get_default("command") == "admin broker config":
            sub.add_argument("changes", nargs="*", type=name_value, metavar="NAME=VALUE")


def _add_topics(commands: AdminCommands) -> None:
    sub = commands.add("topics", topics, "list topics")
    sub.add_argument("--cluster", metavar="CLUSTER")
    sub.add_argument("--all", action="store_true", help="RocketMQ's own topics as well")
    topic = commands.group("topic", "make, delete or show a topic")
    create = topic.add("create", topic_create, "make a topic on every master, or set one so")
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument("--queues", type=int, metavar="N", default=8, help="on each broker (default: 8)")
    create.add_argument("--write-queues", type=int, metavar="N", help="fewer while a topic is made smaller")
    create.add_argument("--perm", choices=("rw", "r", "w"), default="rw", help="(default: rw)")
    create.add_argument("--kind", metavar="KIND", default="NORMAL", help="NORMAL, FIFO, DELAY or TRANSACTION")
    create.add_argument("--cluster", metavar="CLUSTER", help="may be left out where there is one")
    create.add_argument("--order", action="store_true", help="write the order of queues into the name servers")
    create.add_argument("--allow-shrink", action="store_true", help="also below queues that hold messages")
    delete = topic.add("delete", topic_delete, "delete a topic with its messages", changes=True)
    delete.add_argument("topic", metavar="TOPIC")
    delete.add_argument("--cluster", metavar="CLUSTER", help="only there")
    stats = topic.add("stats", topic_stats, "show the queues of a topic, and who reads it")
    stats.add_argument("topic", metavar="TOPIC")


def _add_groups(commands: AdminCommands) -> None:
    sub = commands.add("groups", groups, "list consumer groups")
    sub.add_argument("--all", action="store_true", help="RocketMQ's own groups as well")
    show = commands.add("lag", lag, "show how far a group is, and its members")
    show.add_argument("group", metavar="GROUP")
    show.add_argument("topic", metavar="TOPIC", nargs="?")
    change = commands.add(
        "reset",
        reset,
        "set where a group goes on in a topic",
        more="The members may run. Shows what would change; --yes does it.",
        changes=True,
    )
    change.add_argument("group", metavar="GROUP")
    change.add_argument("topic", metavar="TOPIC")
    change.add_argument("--queue", type=whole, metavar="N", help="only this queue")
    change.add_argument("--broker", metavar="NAME", help="of the queue, where the topic has several brokers")
    to = change.add_mutually_exclusive_group(required=True)
    add_ends(to)
    to.add_argument("--to-time", type=time_ms, metavar="TIME", help="the first message of this time (ms or ISO 8601)")
    to.add_argument("--to-offset", type=whole, metavar="N", help="this offset, of one --queue")


# --- clusters and topics ---


def cluster(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List brokers."""
    rows = [
        (name, broker, broker_id, address)
        for name, brokers in admin.clusters().items()
        for broker, addresses in brokers.items()
        for broker_id, address in sorted(addresses.items())
    ]
    return print_table(out, ("cluster", "broker", "id", "address"), rows)


def topics(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List topics."""
    return print_table(
        out, ("topic",), [(name,) for name in admin.topics(cluster=arguments.cluster, system=arguments.all)]
    )


def topic_create(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Create or change a topic, and show the topic."""
    admin.create_topic(
        arguments.topic,
        queues=arguments.queues,
        write_queues=arguments.write_queues,
        perm=arguments.perm,
        kind=arguments.kind,
        cluster=arguments.cluster,
        order=arguments.order,
        allow_shrink=arguments.allow_shrink,
    )
    rows = [
        (broker, config.get("readQueueNums"), config.get("writeQueueNums"), config.get("perm"))
        for broker, config in admin.topic_config(arguments.topic).items()
    ]
    return print_table(out, ("broker", "read queues", "write queues", "perm"), rows)


def topic_delete(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Delete a topic, or show what would be deleted."""
    held = sum(stats.max_offset - stats.min_offset for stats in admin.topic_stats(arguments.topic).values())
    readers = admin.topic_groups(arguments.topic)
    out.note(f"topic {arguments.topic}: {held} messages; groups: {', '.join(readers) or 'none'}")
    if not arguments.yes:
        out.note("nothing was deleted; --yes does it")
        return ExitCode.OK
    admin.delete_topic(arguments.topic, cluster=arguments.cluster)
    out.note("done")
    return ExitCode.OK


def topic_stats(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show queues."""
    rows = [
        (queue.broker_name, queue.queue_id, stats.min_offset, stats.max_offset, _time(out, stats.last_update))
        for queue, stats in admin.topic_stats(arguments.topic).items()
    ]
    code = print_table(out, ("broker", "queue", "min", "max", "last message"), rows)
    if not out.as_json:
        out.note(f"groups: {', '.join(admin.topic_groups(arguments.topic)) or 'none'}")
    return code


# --- groups and offsets ---


def groups(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List groups."""
    return print_table(out, ("group",), [(name,) for name in admin.groups(system=arguments.all)])


def lag(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show lag, then the members on stderr."""
    lags = admin.lag(arguments.group, arguments.topic)
    rows = [
        (
            *queue,
            state.committed,
            state.behind,
            state.age.total_seconds() if out.as_json else _age(state.age),
            state.beyond,
        )
        for queue, state in lags.items()
    ]
    code = print_table(out, ("topic", "broker", "queue", "committed", "behind", "age", "beyond"), rows)
    if any(state.beyond for state in lags.values()):
        out.note("beyond: the offset is behind the end of the queue; messages up to the offset are not read")
    if not out.as_json:
        members = admin.connections(arguments.group)
        out.note(f"{sum(state.behind for state in lags.values())} behind; members: {len(members)}")
        for member in members:
            out.note(f"member {member['client_id']} at {member['address']}, {member['language']}")
    return code


def reset(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show a plan of a reset, or apply the plan."""
    queue = _queue(admin, arguments)
    to: Any = "earliest" if arguments.to_earliest else "latest"
    if arguments.to_time is not None:
        to = datetime.fromtimestamp(arguments.to_time / 1000, UTC)
    elif arguments.to_offset is not None:
        if queue is None:
            raise ConfigError("--to-offset: expected with --queue, because each queue has its own offsets")
        to = arguments.to_offset
    plan = admin.reset_offset(arguments.group, arguments.topic, to, queue=queue, dry_run=not arguments.yes)
    rows = [(step.queue.broker_name, step.queue.queue_id, *step[1:]) for step in plan]
    code = print_table(out, ("broker", "queue", "now", "to", "skipped", "replayed"), rows)
    out.note("done" if arguments.yes else _YES)
    return code


def _queue(admin: AdminClient, arguments: argparse.Namespace) -> Any:
    if arguments.queue is None:
        if arguments.broker is not None:
            raise ConfigError("--broker: expected with --queue")
        return None
    from mqfast.client.values import MessageQueue

    brokers = admin.topic_config(arguments.topic)
    if arguments.broker is None and len(brokers) != 1:
        raise ConfigError(f"--broker: expected one of {', '.join(brokers)}, because the topic has several")
    return MessageQueue(arguments.topic, arguments.broker or next(iter(brokers)), arguments.queue)


# --- brokers ---


def broker_config(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show all settings, or change some."""
    settings = admin.broker_config(arguments.broker)
    if not arguments.changes:
        return print_table(out, ("name", "value"), list(settings.items()))
    changes = dict(arguments.changes)
    rows = [(name, settings.get(name, "-"), value) for name, value in changes.items()]
    print_table(out, ("name", "now", "then"), rows)
    if arguments.yes:
        admin.set_broker_config(arguments.broker, changes)
    out.note("done" if arguments.yes else _YES)
    return ExitCode.OK


def broker_runtime(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the measured values of a broker."""
    return print_table(out, ("name", "value"), list(admin.runtime(arguments.broker).items()))


# --- output ---


def print_table(out: Output, heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> ExitCode:
    """Print rows as a table or as JSON. Returns: NOTHING_FOUND without rows."""
    if out.as_json:
        for row in rows:
            out.json(dict(zip((_camel(head) for head in heads), row, strict=True)))
    elif rows:
        out.table(heads, rows)
    else:
        out.note("nothing was found")
    return ExitCode.OK if rows else ExitCode.NOTHING_FOUND


def _camel(head: str) -> str:
    first, *rest = head.split()
    return first + "".join(word.capitalize() for word in rest)


def _time(out: Output, timestamp_ms: int) -> int | str:
    return timestamp_ms if out.as_json else time_text(timestamp_ms) if timestamp_ms else "-"


def _age(age: timedelta) -> str:
    """Return an age to the second, or to the millisecond below ten seconds."""
    return (
        str(timedelta(seconds=int(age.total_seconds())))
        if age >= timedelta(seconds=10)
        else f"{age.total_seconds():.3f} s"
    )

"""``mqfast admin topic``: list, make, change, delete and show topics.

A deletion shows what would be lost, and is made with ``--yes`` only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqfast.cli.admin.commands import AdminCommands, print_changes, print_table, say_outcome
from mqfast.cli.arguments import Parser
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output, time_text
from mqfast.errors import ConfigError, NoRoute

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = ["add_commands", "kind_of", "perm_text"]


def add_commands(commands: AdminCommands) -> None:
    """Add the commands of the noun."""
    commands.add("ls", ls, "list topics with kind, queues and permission", _fill_ls, example="--cluster DefaultCluster")
    commands.add("names", names, "list the names of topics", _fill_ls, hidden=True)
    commands.add(
        "create", create, "make a topic on every master, or set one so", _fill_create, example="orders --queues 8",
        changes=True, at_once=True,
    )  # fmt: skip
    commands.add(
        "set", change, "change settings of a topic; the others stay", _fill_set, example="orders --perm r", changes=True
    )
    commands.add(
        "delete", delete, "delete a topic with its messages", _fill_delete, example="orders --yes", changes=True
    )
    commands.add("show", show, "show the queues of a topic, its settings, and who reads it", _topic, example="orders")
    commands.add("stats", show, "show the queues of a topic", _topic, hidden=True)
    commands.add("route", route, "show where a topic is: brokers, addresses, queues", _topic, example="orders")


def _topic(sub: Parser) -> None:
    sub.add_argument("topic", metavar="TOPIC")


def _fill_ls(sub: Parser) -> None:
    sub.add_argument("--cluster", metavar="CLUSTER")
    sub.add_argument("--all", action="store_true", help="RocketMQ's own topics as well")


def _fill_create(sub: Parser) -> None:
    _topic(sub)
    sub.add_argument("--queues", type=int, metavar="N", default=8, help="on each broker (default: 8)")
    sub.add_argument("--write-queues", type=int, metavar="N", help="fewer while a topic is made smaller")
    sub.add_argument("--perm", choices=("rw", "r", "w"), default="rw", help="(default: rw)")
    sub.add_argument("--kind", "--type", metavar="KIND", default="NORMAL", help="NORMAL, FIFO, DELAY or TRANSACTION")
    _fill_place(sub)
    sub.add_argument("--order", action="store_true", help="write the order of queues into the name servers")


def _fill_place(sub: Parser) -> None:
    sub.add_argument("--cluster", metavar="CLUSTER", help="may be left out where there is one")
    sub.add_argument("--broker", metavar="BROKER", help="only this master: its name, or host:port")
    sub.add_argument("--allow-shrink", "--force", action="store_true", help="also below queues that hold messages")


def _fill_set(sub: Parser) -> None:
    _topic(sub)
    sub.add_argument("--queues", type=int, metavar="N", help="on each broker")
    sub.add_argument("--write-queues", type=int, metavar="N", help="fewer while a topic is made smaller")
    sub.add_argument("--perm", choices=("rw", "r", "w"))
    sub.add_argument("--kind", "--type", metavar="KIND", help="NORMAL, FIFO, DELAY or TRANSACTION")
    _fill_place(sub)


def _fill_delete(sub: Parser) -> None:
    _topic(sub)
    sub.add_argument("--cluster", metavar="CLUSTER", help="only there")


def perm_text(bits: object) -> str:
    """Return the permission of RocketMQ's bits: ``rw``, ``r``, ``w`` or ``-``."""
    number = bits if isinstance(bits, int) else 0
    return "".join(letter for letter, bit in (("r", 4), ("w", 2)) if number & bit) or "-"


def kind_of(settings: Mapping[str, Any]) -> str:
    """Return the kind of messages of a topic's settings."""
    attributes = settings.get("attributes")
    return str(attributes.get("message.type", "NORMAL")) if isinstance(attributes, dict) else "NORMAL"


# --- commands that read ---


def names(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List names."""
    topics = admin.topics(cluster=arguments.cluster, system=arguments.all)
    return print_table(out, ("topic",), [(name,) for name in topics])


def ls(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List topics by one request a broker."""
    wanted = admin.topics(cluster=arguments.cluster, system=arguments.all)
    tables: dict[str, dict[str, Mapping[str, Any]]] = {}
    for cluster, brokers in admin.clusters().items():
        if arguments.cluster in (None, cluster):
            for broker in brokers:
                for topic, settings in admin.topic_configs(broker).items():
                    tables.setdefault(topic, {})[broker] = settings
    rows = []
    for topic in wanted:
        places = tables.get(topic, {})
        first = next(iter(places.values()), {})
        queues = sum(int(settings.get("readQueueNums") or 0) for settings in places.values())
        rows.append((topic, kind_of(first), perm_text(first.get("perm")), queues, " ".join(sorted(places)) or "-"))
    return print_table(out, ("topic", "kind", "perm", "queues", "brokers"), rows)


def show(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show queues; settings and groups on stderr."""
    rows = [
        (queue.broker_name, queue.queue_id, stats.min_offset, stats.max_offset, _time(out, stats.last_update))
        for queue, stats in admin.topic_stats(arguments.topic).items()
    ]
    code = print_table(out, ("broker", "queue", "min", "max", "last message"), rows)
    if not out.as_json:
        for broker, settings in admin.topic_config(arguments.topic).items():
            reads, writes = settings.get("readQueueNums"), settings.get("writeQueueNums")
            perm = perm_text(settings.get("perm"))
            out.note(f"{broker}: {kind_of(settings)}, perm {perm}, {reads} queues to read, {writes} to write")
        out.note(f"groups: {', '.join(admin.topic_groups(arguments.topic)) or 'none'}")
    return code


def route(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the brokers of a topic with their addresses."""
    clusters = admin.clusters()
    rows = []
    for broker, settings in admin.topic_config(arguments.topic).items():
        for cluster, brokers in clusters.items():
            for broker_id, address in sorted(brokers.get(broker, {}).items()):
                queues = (settings.get("readQueueNums"), settings.get("writeQueueNums"))
                rows.append((cluster, broker, broker_id, address, *queues, perm_text(settings.get("perm"))))
    return print_table(out, ("cluster", "broker", "id", "address", "read queues", "write queues", "perm"), rows)


def where(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List the clusters of a topic."""
    topic_brokers = set(admin.topic_config(arguments.topic))
    clusters = [name for name, brokers in admin.clusters().items() if topic_brokers & set(brokers)]
    return print_table(out, ("cluster",), [(name,) for name in clusters])


def _time(out: Output, timestamp_ms: int) -> int | str:
    return timestamp_ms if out.as_json else time_text(timestamp_ms) if timestamp_ms else "-"


# --- commands that change ---


def create(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Create or change a topic, and show the topic."""
    if not arguments.yes:
        before = _settings(admin, arguments.topic)
        writes = arguments.queues if arguments.write_queues is None else arguments.write_queues
        after = {"perm": arguments.perm, "readQueueNums": arguments.queues, "writeQueueNums": writes,
                 "kind": arguments.kind}  # fmt: skip
        for broker in before or ("every master",):
            print_changes(out, _known(before.get(broker, {})), after, broker=broker)
        say_outcome(out, arguments)
        return ExitCode.OK
    admin.create_topic(
        arguments.topic,
        queues=arguments.queues,
        write_queues=arguments.write_queues,
        perm=arguments.perm,
        kind=arguments.kind,
        cluster=arguments.cluster,
        order=arguments.order,
        allow_shrink=arguments.allow_shrink,
        broker=arguments.broker,
    )
    rows = [
        (broker, config.get("readQueueNums"), config.get("writeQueueNums"), config.get("perm"))
        for broker, config in admin.topic_config(arguments.topic).items()
    ]
    return print_table(out, ("broker", "read queues", "write queues", "perm"), rows)


def change(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Change the given settings of a topic on each of its brokers, or show the change."""
    settings = admin.topic_config(arguments.topic)
    masters = _masters(admin, arguments, settings)
    changed = 0
    for broker in masters:
        before = _known(settings[broker])
        after = {**before, **{name: value for name, value in (
            ("perm", arguments.perm), ("readQueueNums", arguments.queues), ("kind", arguments.kind),
            ("writeQueueNums", _first(arguments.write_queues, arguments.queues)),
        ) if value is not None}}  # fmt: skip
        count = print_changes(out, before, after, broker=broker)
        changed += count
        if count and arguments.yes:
            admin.create_topic(
                arguments.topic, queues=after["readQueueNums"], write_queues=after["writeQueueNums"],
                perm=after["perm"], kind=after["kind"], broker=broker, allow_shrink=arguments.allow_shrink,
            )  # fmt: skip
    if not changed:
        out.note("the topic is so already")
    else:
        say_outcome(out, arguments)
    return ExitCode.OK


def _masters(admin: AdminClient, arguments: argparse.Namespace, settings: Mapping[str, Any]) -> list[str]:
    names = []
    for cluster, brokers in admin.clusters().items():
        if arguments.cluster in (None, cluster):
            names += [
                name for name, addresses in brokers.items()
                if name in settings and arguments.broker in (None, name, addresses.get(0))
            ]  # fmt: skip
    if not names:
        raise NoRoute(
            f"topic {arguments.topic}: expected at broker {arguments.broker or arguments.cluster}, found none"
        )
    return sorted(names)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _known(settings: Mapping[str, Any]) -> dict[str, Any]:
    if not settings:
        return {}
    return {
        "perm": perm_text(settings.get("perm")), "readQueueNums": settings.get("readQueueNums"),
        "writeQueueNums": settings.get("writeQueueNums"), "kind": kind_of(settings),
    }  # fmt: skip


def _settings(admin: AdminClient, topic: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of a topic by broker; empty for a new topic."""
    return admin.topic_config(topic) if topic in admin.topics(system=True) else {}


def delete(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Delete a topic, or show what would be deleted."""
    held = sum(stats.max_offset - stats.min_offset for stats in admin.topic_stats(arguments.topic).values())
    readers = admin.topic_groups(arguments.topic)
    out.note(f"topic {arguments.topic}: {held} messages; groups: {', '.join(readers) or 'none'}")
    if arguments.yes:
        admin.delete_topic(arguments.topic, cluster=arguments.cluster)
    say_outcome(out, arguments, "deleted")
    return ExitCode.OK


def create_listed(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Create the topics of a file: a JSON list of settings by RocketMQ's names."""
    for settings in read_list(arguments.file, "topicName"):
        admin.create_topic(
            settings["topicName"], queues=settings.get("readQueueNums", 8),
            write_queues=settings.get("writeQueueNums"), perm=perm_text(settings.get("perm", 6)),
            kind=kind_of(settings), cluster=arguments.cluster, broker=arguments.broker,
        )  # fmt: skip
        out.line(settings["topicName"])
    return ExitCode.OK


def read_list(file: str, key: str) -> list[dict[str, Any]]:
    """Return the rows of a file with a JSON list. Raises: ConfigError for a row without the key."""
    try:
        rows = json.loads(Path(file).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: expected a JSON list: {error}") from None
    for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
        if not isinstance(row, dict) or not isinstance(row.get(key), str):
            raise ConfigError(f"{file}: entry {number}: expected an object with {key}, found {str(row)[:60]}")
    return list(rows)

"""``mqfast admin group``: list, make, change and delete consumer groups; lag and members; and connected producers.

Offsets are changed by the commands of ``offsets.py``. A group that is deleted keeps its offsets unless told.
"""

from __future__ import annotations

import argparse
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mqfast.cli.admin import offsets
from mqfast.cli.admin.commands import AdminCommands, print_changes, print_table, say_outcome
from mqfast.cli.arguments import Parser, name_value, whole
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output, time_text
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = ["add_commands", "producers"]

_VERSIONS_APART = "members subscribe differently: expected the same topics and expressions in a group"


def add_commands(commands: AdminCommands) -> None:
    """Add the commands of the noun."""
    commands.add("ls", ls, "list groups with their lag, by one request a broker", _fill_ls, example="--max-lag 1000")
    commands.add("names", names, "list the names of groups", _fill_all, hidden=True)
    commands.add(
        "show", show, "show how far a group is, and its members", _fill_show, example="billing orders",
        more="Exit code 1 where the group is behind by more than --max-lag.",
    )  # fmt: skip
    commands.add("members", members, "show the connected members of a group", _group, example="billing")
    commands.add(
        "status", status, "ask a member what it runs: queues, rates, stacks", _fill_status, example="billing --stack"
    )
    commands.add(
        "create", create, "make a group on every master, or set one so", _fill_create, example="billing --retry-max 16",
        changes=True, at_once=True,
    )  # fmt: skip
    commands.add(
        "set", change, "change settings of a group, by RocketMQ's names", _fill_set,
        example="billing retryMaxTimes=3 --yes", changes=True,
    )  # fmt: skip
    commands.add("delete", delete, "delete a group", _fill_delete, example="billing --offsets --yes", changes=True)
    offsets.add_commands(commands)


def _group(sub: Parser) -> None:
    sub.add_argument("group", metavar="GROUP")


def _fill_all(sub: Parser) -> None:
    sub.add_argument("--all", action="store_true", help="RocketMQ's own groups as well")


def _fill_ls(sub: Parser) -> None:
    _fill_all(sub)
    sub.add_argument("--max-lag", type=whole, metavar="N", help="exit code 1 where a group is behind by more messages")


def _fill_show(sub: Parser) -> None:
    _group(sub)
    sub.add_argument("topic", metavar="TOPIC", nargs="?")
    sub.add_argument("--max-lag", type=whole, metavar="N", help="exit code 1 above so many messages")


def _fill_status(sub: Parser) -> None:
    _group(sub)
    sub.add_argument("--client", metavar="ID", help="only this member")
    sub.add_argument("--stack", action="store_true", help="with the stacks of all threads")


def _fill_create(sub: Parser) -> None:
    _group(sub)
    sub.add_argument("--orderly", action="store_true", help="messages are consumed in order")
    sub.add_argument("--retry-max", type=int, metavar="N", default=16, help="redeliveries at most (default: 16)")
    _fill_place(sub)


def _fill_place(sub: Parser) -> None:
    sub.add_argument("--cluster", metavar="CLUSTER", help="may be left out where there is one")
    sub.add_argument("--broker", metavar="BROKER", help="only this master: its name, or host:port")


def _fill_set(sub: Parser) -> None:
    _group(sub)
    sub.add_argument("changes", nargs="+", type=name_value, metavar="NAME=VALUE")
    _fill_place(sub)


def _fill_delete(sub: Parser) -> None:
    _group(sub)
    sub.add_argument("--cluster", metavar="CLUSTER", help="only there")
    sub.add_argument("--offsets", action="store_true", help="with its committed offsets")
    sub.add_argument("--topics", action="store_true", help="with its retries and dead letters")


# --- commands that read ---


def names(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List names."""
    return print_table(out, ("group",), [(name,) for name in admin.groups(system=arguments.all)])


def ls(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List groups, those that are most behind first."""
    behind: dict[str, int] = dict.fromkeys(admin.groups(system=arguments.all), 0)
    topics: dict[str, set[str]] = {name: set() for name in behind}
    for brokers in admin.clusters().values():
        for broker in brokers:
            for group, queues in admin.all_progress(broker).items():
                if group in behind:
                    behind[group] += sum(max(0, row.end - row.committed) for row in queues.values())
                    topics[group] |= {queue.topic for queue in queues}
    rows = [
        (group, count, len(topics[group]))
        for group, count in sorted(behind.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    code = print_table(out, ("group", "behind", "topics"), rows)
    too_far = arguments.max_lag is not None and any(count > arguments.max_lag for count in behind.values())
    return ExitCode.DAMAGE if too_far else code


def show(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show lag, then the members on stderr."""
    lags = admin.lag(arguments.group, arguments.topic)
    rows = [
        (
            *queue,
            state.committed,
            state.behind,
            state.age.total_seconds() if out.as_json else age_text(state.age),
            state.beyond,
        )
        for queue, state in lags.items()
    ]
    code = print_table(out, ("topic", "broker", "queue", "committed", "behind", "age", "beyond"), rows)
    total = sum(state.behind for state in lags.values())
    if any(state.beyond for state in lags.values()):
        out.note("beyond: the offset is behind the end of the queue; messages up to the offset are not read")
    if not out.as_json:
        connected = admin.connections(arguments.group)
        out.note(f"{total} behind; members: {len(connected)}")
        for member in connected:
            out.note(f"member {member['client_id']} at {member['address']}, {member['language']}")
    limit = getattr(arguments, "max_lag", None)
    if limit is not None and total > limit:
        out.note(f"{total} behind, more than {limit}")
        return ExitCode.DAMAGE
    return code


def members(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show members with their subscriptions."""
    connected = admin.connections(arguments.group)
    rows = [
        (
            member["client_id"], member["address"], member["language"], member["version"], member["consume_type"],
            member["model"], "; ".join(f"{topic}: {words}" for topic, words in member["subscriptions"].items()),
        )
        for member in connected
    ]  # fmt: skip
    code = print_table(out, ("client", "address", "language", "version", "type", "model", "subscriptions"), rows)
    if len({str(member["subscriptions"]) for member in connected}) > 1:
        out.note(_VERSIONS_APART)
    return code


def status(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the running info of members."""
    ids = [member["client_id"] for member in admin.connections(arguments.group)]
    wanted = [arguments.client] if arguments.client else ids
    for client_id in wanted:
        info = admin.running_info(arguments.group, client_id, stack=arguments.stack)
        if out.as_json:
            queues = {
                f"{queue.topic}/{queue.broker_name}/{queue.queue_id}": row for queue, row in info["queues"].items()
            }
            out.json({"client": client_id, **info, "queues": queues, "pop_queues": len(info["pop_queues"])})
            continue
        out.facts(client_id, sorted(info["properties"].items()))
        heads = ("topic", "broker", "queue", "committed", "cached", "last pull", "last consumed")
        rows = [
            (*queue, row.get("commitOffset"), row.get("cachedMsgCount"), _moment(row.get("lastPullTimestamp")),
             _moment(row.get("lastConsumeTimestamp")))
            for queue, row in info["queues"].items()
        ]  # fmt: skip
        if rows:
            out.table(heads, rows)
        for topic, rates in sorted(info["status"].items()):
            out.line(f"{topic}: {', '.join(f'{name} {value}' for name, value in sorted(rates.items()))}")
        if info["stack"]:
            out.text(info["stack"])
    if not wanted:
        out.note("nothing was found: no member is connected")
    return ExitCode.OK if wanted else ExitCode.NOTHING_FOUND


def producers(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List the connected producers."""
    rows = [
        (row["group"], row["client_id"], row["address"], row["language"], row["version"])
        for row in admin.producers(arguments.group)
    ]
    return print_table(out, ("group", "client", "address", "language", "version"), rows)


def settings(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the settings of a group on each broker."""
    rows = [
        (broker, name, value)
        for broker, table in admin.group_config(arguments.group).items()
        for name, value in sorted(table.items())
    ]
    return print_table(out, ("broker", "name", "value"), rows)


def _moment(timestamp_ms: object) -> str:
    return time_text(timestamp_ms) if isinstance(timestamp_ms, int) and timestamp_ms > 0 else "-"


def age_text(age: timedelta) -> str:
    """Return an age to the second, or to the millisecond below ten seconds."""
    if age >= timedelta(seconds=10):
        return str(timedelta(seconds=int(age.total_seconds())))
    return f"{age.total_seconds():.3f} s"


# --- commands that change ---


def create(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Create or change a group, and show the changes."""
    given = {"consumeMessageOrderly": arguments.orderly, "retryMaxTimes": arguments.retry_max}
    return _changed(admin, arguments, out, {**given, **dict(getattr(arguments, "settings", None) or {})})


def change(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Change the given settings, or show the change. The group must exist."""
    admin.group_config(arguments.group)
    return _changed(admin, arguments, out, {name: _value(text) for name, text in arguments.changes})


def _changed(admin: AdminClient, arguments: argparse.Namespace, out: Output, given: dict[str, Any]) -> ExitCode:
    known = arguments.group in admin.groups(system=True)
    before = admin.group_config(arguments.group) if known else {}
    changed = 0
    for broker, table in (before or {"every master": {}}).items():
        after = {**table, **given}
        changed += print_changes(out, table, after, broker=broker)
    if not changed:
        out.note("the group is so already")
        return ExitCode.OK
    if arguments.yes:
        first: dict[str, Any] = dict(next(iter(before.values()), {}))
        orderly = given.pop("consumeMessageOrderly", first.get("consumeMessageOrderly", False))
        retries = given.pop("retryMaxTimes", first.get("retryMaxTimes", 16))
        admin.create_group(
            arguments.group, orderly=orderly, retry_max=retries, settings=given, cluster=arguments.cluster,
            broker=arguments.broker,
        )  # fmt: skip
    say_outcome(out, arguments)
    return ExitCode.OK


def _value(text: str) -> object:
    """Return a setting as RocketMQ's JSON has it: true, false, a number or a text."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def delete(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Delete a group, or show what would be deleted."""
    connected = admin.connections(arguments.group)
    parts = {"offsets": arguments.offsets, "retries and dead letters": arguments.topics}
    kept = [part for part, is_deleted in parts.items() if not is_deleted]
    out.note(f"group {arguments.group}: {len(connected)} members; kept: {', '.join(kept) or 'nothing'}")
    if arguments.yes:
        admin.delete_group(
            arguments.group, cluster=arguments.cluster, offsets=arguments.offsets, topics=arguments.topics
        )
    say_outcome(out, arguments, "deleted")
    return ExitCode.OK


def create_listed(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Create the groups of a file: a JSON list of settings by RocketMQ's names."""
    from mqfast.cli.admin.topics import read_list

    for row in read_list(arguments.file, "groupName"):
        table = {name: value for name, value in row.items() if name not in ("groupName", "attributes")}
        orderly, retries = table.pop("consumeMessageOrderly", False), table.pop("retryMaxTimes", 16)
        if not isinstance(orderly, bool) or not isinstance(retries, int):
            raise ConfigError(
                f"{arguments.file}: group {row['groupName']}: expected a flag and a number, found {table}"
            )
        admin.create_group(
            row["groupName"], orderly=orderly, retry_max=retries, settings=table, cluster=arguments.cluster,
            broker=arguments.broker,
        )  # fmt: skip
        out.line(row["groupName"])
    return ExitCode.OK

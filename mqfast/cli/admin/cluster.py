"""``mqfast admin cluster``: its brokers; export, comparison and import of topics, groups and settings.

An export has no messages, offsets or secrets. An import makes and changes; nothing is deleted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.admin.brokers import rate_text
from mqfast.cli.admin.commands import AdminCommands, client_arguments, print_table, say_outcome
from mqfast.cli.admin.topics import kind_of, perm_text
from mqfast.cli.arguments import Parser
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = ["add_commands"]

_FORMAT: Final = "mqfast cluster 1"
_OF_ONE_BROKER: Final = frozenset(
    (
        "brokerName", "brokerId", "brokerIP1", "brokerIP2", "listenPort", "haListenPort", "fastListenPort",
        "namesrvAddr",
        "storePathRootDir", "storePathCommitLog", "storePathConsumeQueue", "storePathIndex", "storeCheckpoint",
        "abortFile", "rocketmqHome", "brokerRole", "haMasterAddress", "metricsPromExporterPort", "configStorePath",
    )
)  # fmt: skip
"""Settings that differ between any two brokers."""
_TOPIC: Final = ("perm", "readQueueNums", "writeQueueNums", "order", "topicFilterType", "topicSysFlag")


def add_commands(commands: AdminCommands) -> None:
    """Add the commands of the noun."""
    commands.add("ls", ls, "list clusters, brokers and their addresses", _fill_ls, example="--more")
    commands.add(
        "export", export, "write topics, groups and settings of brokers into a JSON file", _fill_export,
        example="cluster.json",
    )  # fmt: skip
    commands.add(
        "diff", diff, "show what differs from an exported file or from another cluster", _fill_diff,
        example="cluster.json", more="Exit code 1 where something differs.",
    )  # fmt: skip
    commands.add(
        "import", read, "make the topics and groups of an exported file", _fill_import, changes=True,
        example="cluster.json --yes", more="Topics and groups that the file does not have stay.",
    )  # fmt: skip


def _fill_ls(sub: Parser) -> None:
    sub.add_argument("--cluster", metavar="CLUSTER", help="only this one")
    sub.add_argument("--more", action="store_true", help="version, rates and disk of each broker as well")


def _fill_export(sub: Parser) -> None:
    sub.add_argument("file", metavar="FILE", help="'-' for stdout; replaced if it exists")
    sub.add_argument("--all", action="store_true", help="RocketMQ's own topics and groups as well")


def _fill_diff(sub: Parser) -> None:
    sub.add_argument("other", metavar="OTHER", help="a file, or name servers as 'host:9876'")
    sub.add_argument("--no-settings", action="store_true", help="topics and groups only")


def _fill_import(sub: Parser) -> None:
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("--cluster", metavar="CLUSTER", help="may be left out where there is one")


def ls(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List brokers; with --more by one request each."""
    rows: list[tuple[Any, ...]] = [
        (name, broker, broker_id, address)
        for name, brokers in admin.clusters().items()
        if arguments.cluster in (None, name)
        for broker, addresses in brokers.items()
        for broker_id, address in sorted(addresses.items())
    ]
    heads: tuple[str, ...] = ("cluster", "broker", "id", "address")
    if arguments.more:
        heads = (*heads, "version", "in per s", "out per s", "disk", "puts today")
        rows = [(*row, *_state(admin, row[3])) for row in rows]
    return print_table(out, heads, rows)


def _state(admin: AdminClient, address: str) -> tuple[str, ...]:
    values = admin.runtime(address)
    rates = [rate_text(values.get(name)) for name in ("putTps", "getTransferredTps")]
    disk = values.get("commitLogDiskRatio", "?")
    return (values.get("brokerVersionDesc", "?"), *rates, disk, values.get("msgPutTotalTodayNow", "?"))


# --- export ---


def picture(admin: AdminClient, *, system: bool = False) -> dict[str, Any]:
    """Return topics, groups and settings of all masters, by cluster and broker."""
    from mqfast.client.admin.secret_settings import is_secret

    topics, groups = set(admin.topics(system=system)), set(admin.groups(system=system))
    clusters: dict[str, Any] = {}
    for cluster, brokers in admin.clusters().items():
        table = clusters[cluster] = {}
        for broker, addresses in brokers.items():
            if 0 not in addresses:
                continue
            config = admin.broker_config(broker)
            table[broker] = {
                "topics": {name: _topic(row) for name, row in admin.topic_configs(broker).items() if name in topics},
                "groups": {name: _group(row) for name, row in admin.group_configs(broker).items() if name in groups},
                "settings": {
                    name: value for name, value in config.items()
                    if name not in _OF_ONE_BROKER and not is_secret(name, value)
                },
            }  # fmt: skip
    return {"format": _FORMAT, "clusters": clusters}


def _topic(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: row.get(name) for name in _TOPIC}, "kind": kind_of(row)}


def _group(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in sorted(row.items())
        if isinstance(value, (bool, int, str)) and name != "groupName"
    }  # fmt: skip


def export(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Write the picture of the cluster."""
    whole = picture(admin, system=arguments.all)
    text = json.dumps(whole, indent=1, sort_keys=True) + "\n"
    if arguments.file == "-":
        print(text, end="")
        return ExitCode.OK
    Path(arguments.file).write_text(text, "utf-8")
    brokers = [broker for table in whole["clusters"].values() for broker in table.values()]
    topics = len({name for broker in brokers for name in broker["topics"]})
    groups = len({name for broker in brokers for name in broker["groups"]})
    out.note(f"{topics} topics, {groups} groups, {len(brokers)} brokers written into {arguments.file}")
    return ExitCode.OK


# --- comparison ---


def diff(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show what is in one of both only, and what differs."""
    mine, other = picture(admin), _other(arguments)
    parts = ("topics", "groups") if arguments.no_settings else ("topics", "groups", "settings")
    rows = list(_differences(_merged(mine, parts), _merged(other, parts)))
    if rows:
        print_table(out, ("what", "name", "field", "here", "other"), rows)
    else:
        out.note("nothing differs")
    return ExitCode.DAMAGE if rows else ExitCode.OK


def _other(arguments: argparse.Namespace) -> dict[str, Any]:
    if Path(arguments.other).exists() or ":" not in arguments.other:
        return read_picture(arguments.other)
    from mqfast.client.admin.admin_client import AdminClient

    given = {**client_arguments(arguments), "namesrv_addr": arguments.other}
    with AdminClient(**given, timeout_s=arguments.timeout) as admin:
        return picture(admin)


def read_picture(file: str) -> dict[str, Any]:
    """Return the content of an exported file. Raises: ConfigError for another file."""
    try:
        whole = json.loads(Path(file).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: expected a file of 'cluster export': {error}") from None
    clusters = whole.get("clusters") if isinstance(whole, dict) and whole.get("format") == _FORMAT else None
    if not isinstance(clusters, dict):
        raise ConfigError(f"{file}: expected a file of 'cluster export' with format {_FORMAT!r}, found another")
    return dict(whole)


def _merged(whole: Mapping[str, Any], parts: tuple[str, ...]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return (part, name) -> fields; a field that differs between brokers has all values."""
    merged: dict[tuple[str, str], dict[str, set[str]]] = {}
    for brokers in whole["clusters"].values():
        for broker in brokers.values():
            for part in parts:
                for name, value in broker.get(part, {}).items():
                    fields = value if isinstance(value, dict) else {"value": value}
                    known = merged.setdefault((part.removesuffix("s"), name), {})
                    for field, cell in fields.items():
                        known.setdefault(field, set()).add(str(cell))
    return {
        key: {field: " | ".join(sorted(cells)) for field, cells in fields.items()} for key, fields in merged.items()
    }


def _differences(
    here: Mapping[tuple[str, str], Mapping[str, Any]], other: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Iterator[tuple[str, str, str, str, str]]:
    for part, name in sorted({*here, *other}):
        mine, theirs = here.get((part, name)), other.get((part, name))
        if mine is None or theirs is None:
            yield part, name, "-", "-" if mine is None else "there", "-" if theirs is None else "there"
            continue
        for field in sorted({*mine, *theirs}):
            if mine.get(field) != theirs.get(field):
                yield part, name, field, str(mine.get(field, "-")), str(theirs.get(field, "-"))


# --- import ---


def read(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Make the topics and groups of a file, or show which."""
    whole = read_picture(arguments.file)
    topics: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for brokers in whole["clusters"].values():
        for broker in brokers.values():
            topics |= broker.get("topics", {})
            groups |= broker.get("groups", {})
    known_topics, known_groups = set(admin.topics(system=True)), set(admin.groups(system=True))
    rows = [("topic", name, "there" if name in known_topics else "new") for name in sorted(topics)]
    rows += [("group", name, "there" if name in known_groups else "new") for name in sorted(groups)]
    code = print_table(out, ("what", "name", "state"), rows)
    if arguments.yes:
        for name, row in sorted(topics.items()):
            if not name.startswith("%"):  # brokers make the topics of retries and dead letters
                admin.create_topic(
                    name, queues=row["readQueueNums"], write_queues=row["writeQueueNums"], perm=perm_text(row["perm"]),
                    kind=row.get("kind", "NORMAL"), cluster=arguments.cluster,
                )  # fmt: skip
        for name, row in sorted(groups.items()):
            table = dict(row)
            orderly, retries = bool(table.pop("consumeMessageOrderly", False)), int(table.pop("retryMaxTimes", 16))
            admin.create_group(name, orderly=orderly, retry_max=retries, settings=table, cluster=arguments.cluster)
    say_outcome(out, arguments)
    return code

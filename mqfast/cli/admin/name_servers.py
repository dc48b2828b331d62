"""``mqfast admin namesrv``: settings of the name servers, and the values that they keep.

Name servers share no state: each is shown, and a change goes to all of them.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from mqfast.cli.admin.commands import AdminCommands, print_table, say_outcome
from mqfast.cli.arguments import Parser, name_value
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = ["add_commands"]

_ORDER: Final = "ORDER_TOPIC_CONFIG"


def add_commands(commands: AdminCommands) -> None:
    """Add the commands of the noun."""
    commands.add("config", config, "show the settings of each name server", example="--json")
    commands.add(
        "set", config_set, "change settings of all name servers", _fill_set, example="orderMessageEnable=true --yes",
        changes=True,
    )  # fmt: skip
    commands.add("values", values, "show the values of a namespace", _fill_namespace, example=f"--namespace {_ORDER}")
    commands.add(
        "set-value", set_value, "set a value at all name servers", _fill_value, example="orders broker-a:8 --yes",
        changes=True,
    )  # fmt: skip
    commands.add(
        "delete-value", set_value, "delete a value at all name servers", _fill_key, example="orders --yes", changes=True
    )


def _fill_set(sub: Parser) -> None:
    sub.add_argument("changes", nargs="+", type=name_value, metavar="NAME=VALUE")


def _fill_namespace(sub: Parser) -> None:
    sub.add_argument("--namespace", metavar="NAME", default=_ORDER, help=f"(default: {_ORDER})")


def _fill_key(sub: Parser) -> None:
    sub.add_argument("key", metavar="KEY", help=f"in {_ORDER}: the topic")
    _fill_namespace(sub)


def _fill_value(sub: Parser) -> None:
    sub.add_argument("key", metavar="KEY", help=f"in {_ORDER}: the topic")
    sub.add_argument("value", metavar="VALUE")
    _fill_namespace(sub)


def config(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show settings by address."""
    rows = [(address, *pair) for address, settings in admin.namesrv_config().items() for pair in settings.items()]
    return print_table(out, ("name server", "name", "value"), rows)


def config_set(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Change settings, or show the change."""
    changes = dict(arguments.changes)
    rows = [
        (address, name, settings.get(name, "-"), value)
        for address, settings in admin.namesrv_config().items()
        for name, value in changes.items()
    ]
    print_table(out, ("name server", "name", "now", "then"), rows)
    if arguments.yes:
        admin.set_namesrv_config(changes)
    say_outcome(out, arguments)
    return ExitCode.OK


def values(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show values by address."""
    tables = admin.namesrv_values(arguments.namespace)
    rows = [(address, *pair) for address, table in tables.items() for pair in sorted(table.items())]
    return print_table(out, ("name server", "key", "value"), rows)


def set_value(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Set or delete a value, or show the change."""
    value = getattr(arguments, "value", None)
    rows = [
        (address, arguments.key, table.get(arguments.key, "-"), "-" if value is None else value)
        for address, table in admin.namesrv_values(arguments.namespace).items()
    ]
    print_table(out, ("name server", "key", "before", "after"), rows)
    if arguments.yes:
        admin.set_namesrv_value(arguments.key, value, arguments.namespace)
    say_outcome(out, arguments)
    return ExitCode.OK


def order(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Get, put or delete the order of a topic's queues, as RocketMQ's updateOrderConf."""
    arguments.namespace, arguments.key = _ORDER, arguments.topic
    if arguments.method == "get":
        tables = admin.namesrv_values(_ORDER)
        rows = [(address, table[arguments.topic]) for address, table in tables.items() if arguments.topic in table]
        return print_table(out, ("name server", "value"), rows)
    if arguments.method == "put" and not arguments.value:
        raise ConfigError("-v: expected the order of queues for -m put, as broker-a:8;broker-b:8, found none")
    if arguments.method == "delete":
        arguments.value = None
    return set_value(admin, arguments, out)

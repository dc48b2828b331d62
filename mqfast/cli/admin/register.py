"""``mqfast admin``: the list of its commands. The file of a noun is imported when a line needs it.

RocketMQ's command names are known beside the nouns, and are not in the list of the help.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

from mqfast.cli.admin import old_names
from mqfast.cli.admin.commands import AdminCommands, later
from mqfast.cli.arguments import LazyParser, Parser, whole
from mqfast.cli.exit_codes import EXIT_CODES

__all__ = ["add_commands"]

_NOUNS: Final = {
    "cluster": ("brokers of all clusters; export, compare and import their settings", "cluster"),
    "topic": ("list, make, change, delete or show topics", "topics"),
    "group": ("list, make, change or delete consumer groups; lag, members, reset of offsets", "groups"),
    "message": ("find, print, follow, send or trace messages", "messages"),
    "dlq": ("dead letters of a group: list, show, send again, export", "letters"),
    "broker": ("settings and state of a broker; drain before a restart", "brokers"),
    "namesrv": ("settings and values of the name servers", "name_servers"),
    "acl": ("users, rules and accounts of the access control", "access"),
}
_FORMER: Final[dict[str, Sequence[str]]] = {
    "topics": ("topic", "names"),
    "groups": ("group", "names"),
    "lag": ("group", "show"),
    "reset": ("group", "reset"),
    "find": ("message", "find"),
    "browse": ("message", "cat"),
    "trace": ("message", "trace"),
}
"""Former words of commands, which stay accepted."""

_EPILOG: Final = f"""RocketMQ's command names are accepted with their flags, as in
  mqfast admin updateTopic -n 127.0.0.1:9876 -c DefaultCluster -t orders -r 8 -w 8
'mqfast admin NAME --help' shows the noun form of each; RocketMQ's names change at once, --dry-run shows the change.

example:
  mqfast admin group show billing

{EXIT_CODES}"""


def add_commands(rooms: argparse._SubParsersAction[Any]) -> None:
    """Add ``admin``."""
    rooms.add_parser(
        "admin",
        help="topics, groups, offsets, messages and brokers of a running cluster",
        fill=_fill,
        former=_FORMER,
        description="Topics, groups, offsets, messages and brokers of a running cluster: of Apache RocketMQ's brokers "
        "and of ours. Needs the extra mqfast[client].",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _fill(room: LazyParser) -> None:
    commands = AdminCommands.of(room)
    for noun, (text, module) in _NOUNS.items():
        commands.group(noun, text, _filled(module), first_word=_first_word if noun == "cluster" else None)
    commands.add("producers", later("groups:producers"), "list the connected producers", _producers, example="")
    commands.add("top", later("top:top"), "watch rates and lag of a cluster", _top, example="--interval 2")
    old_names.add_commands(commands)


def _first_word(words: list[str]) -> str:
    return "ls"


def _filled(module: str) -> Callable[[AdminCommands], None]:
    def fill(commands: AdminCommands) -> None:
        import_module(f"mqfast.cli.admin.{module}").add_commands(commands)

    return fill


def _producers(sub: Parser) -> None:
    sub.add_argument("group", metavar="GROUP", nargs="?", help="only of this producer group")


def _top(sub: Parser) -> None:
    sub.add_argument("--interval", type=float, metavar="SECONDS", default=2.0, help="(default: 2)")
    sub.add_argument("--rounds", type=whole, metavar="N", help="end after N pictures (default: until control-C)")
    sub.add_argument("--rows", type=whole, metavar="N", default=15, help="groups shown at most (default: 15)")

"""The common part of the commands of ``mqfast admin``: options, lazy parsers, the client of a command, tables.

A parser is filled when a command line needs it, and the client is imported when a command runs: help stays fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mqfast.cli.arguments import LazyParser, Parser, add_confirmation
from mqfast.cli.connecting import add_credentials, add_tls, credentials_of, tls_context_of
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.cli.output import Output
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = [
    "AdminCommands", "Work", "add_common", "admin_client", "client_arguments", "later", "print_changes", "print_table",
    "say_outcome",
]  # fmt: skip

Work = Callable[["AdminClient", argparse.Namespace, Output], ExitCode]


class AdminCommands:
    """Commands of ``mqfast admin``, each with ``-n``, ``--timeout``, ``--json``, and options of TLS and credentials.

    Args: ``action``: result of argparse for the group; ``words``: the words before the command.
    """

    def __init__(self, action: argparse._SubParsersAction[Any], words: str = "admin ") -> None:
        self._action = action
        self._words = words

    @classmethod
    def of(cls, parser: Parser, words: str = "admin ") -> AdminCommands:
        """Return the commands of a parser that has none yet."""
        action = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=LazyParser)
        return cls(action, words)

    def add(
        self,
        name: str,
        work: Work,
        text: str,
        fill: Callable[[Parser], object] | None = None,
        *,
        example: str = "",
        more: str = "",
        changes: bool = False,
        owns_key: bool = False,
        hidden: bool = False,
        at_once: bool = False,
    ) -> None:
        """Add a command.

        Args: fill: adds the arguments; example: the arguments of a line that the help shows; changes: with ``--yes``
            and ``--dry-run``; at_once: the change needs no ``--yes``; owns_key: the command has a ``--key`` of its own,
            not that of TLS; hidden: not in the list of commands.
        """

        def build(sub: LazyParser) -> None:
            add_common(sub, owns_key=owns_key)
            sub.places_anywhere = True
            if changes and at_once:
                sub.add_argument("--dry-run", action="store_true", help="only say what would be done")
                sub.add_argument("--yes", action="store_true", help="do it (the default)")
            elif changes:
                add_confirmation(sub)
            sub.set_defaults(run=_runner(work, at_once=changes and at_once), command=f"{self._words}{name}")
            if fill is not None:
                fill(sub)

        shown: dict[str, Any] = {} if hidden else {"help": text}
        line = f"mqfast {self._words}{name} {example}".rstrip()
        self._action.add_parser(
            name,
            **shown,
            fill=build,
            description=f"{text[0].upper()}{text[1:]}. {more}".strip(),
            epilog=f"example:\n  {line}\n\n{EXIT_CODES}" if example or not hidden else EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_absent(self, name: str, run: Callable[[argparse.Namespace], ExitCode]) -> None:
        """Add a command that takes any arguments and says that it is not here."""

        def build(sub: LazyParser) -> None:
            sub.set_defaults(run=run, command=f"{self._words}{name}")

        self._action.add_parser(
            name, fill=build, takes_anything=True, description=f"{name} is not here: use RocketMQ's mqadmin.",
            epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    def group(
        self,
        name: str,
        text: str,
        fill: Callable[[AdminCommands], None],
        *,
        first_word: Callable[[list[str]], str] | None = None,
        former: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Add a word before further commands. Args: first_word, former: see LazyParser."""

        def build(sub: LazyParser) -> None:
            fill(AdminCommands.of(sub, f"{self._words}{name} "))

        self._action.add_parser(
            name, help=text, fill=build, first_word=first_word, former=former,
            description=f"{text[0].upper()}{text[1:]}.", epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip


def later(place: str) -> Work:
    """Return a command whose module is imported when the command runs. Args: place: ``module:function``."""
    module, _, function = place.partition(":")

    def work(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
        code: ExitCode = getattr(import_module(f"mqfast.cli.admin.{module}"), function)(admin, arguments, out)
        return code

    return work


def add_common(sub: argparse.ArgumentParser, *, owns_key: bool = False) -> None:
    """Add the options of every command that asks a cluster."""
    sub.add_argument(
        "-n", "--namesrv", "--namesrvAddr", metavar="ADDRESS",
        help="name servers: 'a:9876;b:9876' (default: NAMESRV_ADDR)",
    )  # fmt: skip
    sub.add_argument("--timeout", type=float, metavar="SECONDS", default=10.0, help="for each request (default: 10)")
    sub.add_argument("--json", action="store_true", help="print one JSON object a line")
    add_tls(sub, owns_key=owns_key)
    add_credentials(sub)


def client_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a client that the command line gives: address, credentials and TLS."""
    return {
        "namesrv_addr": arguments.namesrv,
        "credentials": credentials_of(arguments),
        "tls": tls_context_of(arguments) or False,
    }


def admin_client(arguments: argparse.Namespace) -> AdminClient:
    """Return the client of a command. Raises: ConfigError where the extra is not installed."""
    try:
        from mqfast.client.admin.admin_client import AdminClient
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        raise ConfigError(f"mqfast {arguments.command} needs {error.name}: pip install 'mqfast[client]'") from None
    return AdminClient(**client_arguments(arguments), timeout_s=arguments.timeout)


def _runner(work: Work, *, at_once: bool) -> Callable[[argparse.Namespace], ExitCode]:
    def run(arguments: argparse.Namespace) -> ExitCode:
        if at_once:
            arguments.yes = not arguments.dry_run
        with admin_client(arguments) as admin:
            return work(admin, arguments, Output(arguments.json))

    return run


def say_outcome(out: Output, arguments: argparse.Namespace, what: str = "changed") -> None:
    """Print on stderr whether a plan was carried out."""
    out.note("done" if arguments.yes else f"nothing was {what}; --yes does it")


def print_table(out: Output, heads: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> ExitCode:
    """Print rows as a table or as JSON. Returns: NOTHING_FOUND without rows."""
    if out.as_json:
        for row in rows:
            out.json(dict(zip((_camel(head) for head in heads), row, strict=True)))
    elif rows:
        out.table(heads, rows)
    else:
        out.note("nothing was found")
    return ExitCode.OK if rows else ExitCode.NOTHING_FOUND


def print_changes(out: Output, before: Mapping[str, Any], after: Mapping[str, Any], **more: Any) -> int:
    """Print the settings that differ, before and after. Args: more: cells before those. Returns: their count."""
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    cells = [(*more.values(), name, before.get(name, "-"), after.get(name, "-")) for name in names]
    if cells:
        print_table(out, (*more, "name", "before", "after"), cells)
    return len(cells)


def _camel(head: str) -> str:
    first, *rest = head.split()
    return first + "".join(word.capitalize() for word in rest)

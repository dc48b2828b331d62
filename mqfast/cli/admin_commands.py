"""The common part of the commands of ``mqfast admin``: their options, and the client that each command gets.

The client is imported when a command runs, so that ``mqfast --help`` stays fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqfast.cli.arguments import Parser, add_confirmation
from mqfast.cli.connecting import add_credentials, add_tls, credentials_of, tls_context_of
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.cli.output import Output
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = ["AdminCommands"]

Work = Callable[["AdminClient", argparse.Namespace, Output], ExitCode]


class AdminCommands:
    """The commands of ``mqfast admin``, each with ``-n``, ``--timeout``, ``--json``, and the options of TLS and
    credentials.

    Args: ``action``: result of argparse for the group; ``words``: the words before the command.
    """

    def __init__(self, action: argparse._SubParsersAction[Parser], words: str = "admin ") -> None:
        self._action = action
        self._words = words

    def add(
        self, name: str, work: Work, text: str, *, more: str = "", changes: bool = False, owns_key: bool = False
    ) -> Parser:
        """Add a command. Args: changes: with ``--yes``; owns_key: the command has a ``--key`` of its own, not that of
        TLS.
        """
        sub = self._action.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}. {more}".strip(),
            parents=[_common(owns_key=owns_key)],
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.places_anywhere = True
        if changes:
            add_confirmation(sub)
        sub.set_defaults(run=_runner(work), command=f"{self._words}{name}")
        return sub

    def group(self, name: str, text: str) -> AdminCommands:
        """Add a word before further commands."""
        sub = self._action.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        return AdminCommands(
            sub.add_subparsers(title="commands", metavar="COMMAND", required=True), f"{self._words}{name} "
        )


def _common(*, owns_key: bool) -> Parser:
    common = Parser(add_help=False)
    common.add_argument(
        "-n", "--namesrv", metavar="ADDRESS", help="name servers: 'a:9876;b:9876' (default: NAMESRV_ADDR)"
    )
    common.add_argument("--timeout", type=float, metavar="SECONDS", default=10.0, help="for each request (default: 10)")
    common.add_argument("--json", action="store_true", help="print one JSON object a line")
    add_tls(common, owns_key=owns_key)
    add_credentials(common)
    return common


def _runner(work: Work) -> Callable[[argparse.Namespace], ExitCode]:
    def run(arguments: argparse.Namespace) -> ExitCode:
        try:
            from mqfast.client.admin.admin_client import AdminClient
        except ModuleNotFoundError as error:
            if error.name != "msgspec":
                raise
            raise ConfigError(f"mqfast admin needs {error.name}: pip install 'mqfast[client]'") from None
        with AdminClient(
            arguments.namesrv,
            credentials=credentials_of(arguments),
            tls=tls_context_of(arguments) or False,
            timeout_s=arguments.timeout,
        ) as admin:
            return work(admin, arguments, Output(arguments.json))

    return run

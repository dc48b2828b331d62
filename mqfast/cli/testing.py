"""``mqfast testing serve``: a test broker until SIGTERM or control-C.

The broker is imported when the command runs, so that other commands start fast.
"""

from __future__ import annotations

import argparse

from mqfast.cli.arguments import Parser
from mqfast.cli.broker import with_extra
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode

__all__ = ["add_commands"]


def add_commands(rooms: argparse._SubParsersAction[Parser]) -> None:
    """Add ``testing``."""
    from mqfast.testing.serve import add_arguments

    room = rooms.add_parser("testing", help="a broker for tests", description="A broker for tests of other programs.")
    commands = room.add_subparsers(title="commands", metavar="COMMAND", required=True)
    sub = commands.add_parser(
        "serve",
        help="print NAMESRV_ADDR and serve, for tests in any language",
        description="Run name servers and brokers on free ports of 127.0.0.1, print NAMESRV_ADDR=..., and serve until "
        "SIGTERM or control-C; nothing stays on the disk. To run a command beside it: python -m mqfast.testing -- "
        "COMMAND. Needs the extra mqfast[broker].",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(sub)
    sub.set_defaults(run=run, command="testing serve")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Serve."""
    try:
        from mqfast.testing.serve import broker_of, serve

        broker = broker_of(arguments)
    except ModuleNotFoundError as error:
        raise with_extra("testing", error) from None
    serve(broker)
    return ExitCode.OK

"""``mqfast``: the arguments, and what an exception becomes on the way out.

It must never show a traceback for what a user or a disk may do wrong: each error is one line on stderr and an exit
code. The commands themselves are in the files of their groups beside this one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from mqfast.cli import checking, machine, reading, transfer
from mqfast.cli.arguments import Commands, Parser
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode, exit_code_of
from mqfast.errors import MqfastError

__all__ = ["build_parser", "main"]


def build_parser() -> Parser:
    """Everything the command line takes."""
    from mqfast import __version__

    parser = Parser(
        prog="mqfast",
        description="Message stores in Apache RocketMQ's file format.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mqfast {__version__}")
    rooms = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    store = rooms.add_parser(
        "store",
        help="look into a store, put into it, check it",
        description="Look into a store, put into it, check it. All commands but put and repair open it read-only and "
        "take no lock: they may run "
        "beside a broker or an app that writes it, and on a store that nobody closed.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = Commands(store.add_subparsers(title="commands", metavar="COMMAND", required=True))
    for group in (reading, transfer, checking):
        group.add_commands(commands)
    machine.add_commands(rooms)
    return parser


def _silence_stdout() -> None:
    # Whoever read our output has gone; the interpreter's own flush at exit must not complain about that.
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else ExitCode.OK if stop.code is None else ExitCode.USAGE
    except BrokenPipeError:
        _silence_stdout()
        return ExitCode.OK
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (MqfastError, OSError) as error:
        from mqfast.cli.output import visible

        print(f"mqfast: {visible(' '.join(str(error).split()))}", file=sys.stderr)
        return exit_code_of(error)

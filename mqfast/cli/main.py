"""``mqfast``: the arguments, and the exit code of an exception.

An error of a user or a disk is a line on stderr and an exit code, without a traceback. The commands are in the files
of their groups beside this file.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from mqfast.cli.arguments import STORE_VARIABLE, Commands, LazyParser, Parser, decoded
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode, exit_code_of
from mqfast.errors import MqfastError

__all__ = ["build_parser", "main"]


# The file of each command. Only that of the first word of a line is imported, and all for the help of the whole.
_FILES: Final = {
    "store": "store", "doctor": "machine", "bench": "machine", "namesrv": "namesrv", "broker": "broker", "up": "up",
    "health": "health", "testing": "testing", "admin": "admin.register", "explain": "explain", "ha": "ha",
    "console": "console", "mcp": "console",
}  # fmt: skip


def build_parser(first: str = "") -> Parser:
    """Return the parser of the command line. Args: first: only of this command; all for an unknown word."""
    from mqfast import __version__

    parser = Parser(
        prog="mqfast",
        description="Message stores in Apache RocketMQ's file format.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mqfast {__version__}")
    rooms: argparse._SubParsersAction[Any] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=LazyParser
    )
    words = (first,) if first in _FILES else tuple(_FILES)
    for module in dict.fromkeys(_FILES[word] for word in words):
        if module == "store":
            _add_store(rooms)
        else:
            import_module(f"mqfast.cli.{module}").add_commands(rooms)
    if words != (first,):
        from mqfast.cli import completion

        completion.add_command(rooms, parser)
    return parser


def _add_store(rooms: argparse._SubParsersAction[Any]) -> None:
    """Add ``store``."""
    from mqfast.cli import checking, groups, reading, transfer

    store = rooms.add_parser(
        "store",
        help="look into a store, put into it, check it",
        description="Look into a store, put into it, check it. All commands but put, import, repair and reset-offsets "
        f"--yes open it read-only and take no lock: they may run beside a broker or an app that writes it, and on a "
        f"store that nobody closed. Where {STORE_VARIABLE} names a store, PATH may be left out.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = Commands(store.add_subparsers(title="commands", metavar="COMMAND", required=True))
    for group in (reading, groups, transfer, checking):
        group.add_commands(commands)


def _streams_are_open() -> bool:
    """Ensure that no file of a store gets the number of a standard stream. Returns: whether stdout exists."""
    if sys.stdin is None or sys.stderr is None:
        for number, mode in ((0, os.O_RDONLY), (2, os.O_WRONLY)):
            try:
                os.fstat(number)
            except OSError:
                # A descriptor gets the lowest free number, and 1 may be free as well.
                os.dup2(os.open(os.devnull, mode), number)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        print("mqfast: standard output is closed: expected one that is open (>&- closes it, >/dev/null does not)",
              file=sys.stderr)  # fmt: skip
        return False
    return True


def _flushed() -> ExitCode:
    """Flush stdout; a closed pipe is not an error."""
    try:
        sys.stdout.flush()
        return ExitCode.OK
    except OSError as error:
        # The flush of the interpreter at exit must not report the error again.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK if isinstance(error, BrokenPipeError) else _told(error)


def _told(error: Exception) -> ExitCode:
    from mqfast.cli.output import visible

    print(f"mqfast: {visible(' '.join(str(error).split()))}", file=sys.stderr)
    return exit_code_of(error)


def _print_whatever_it_is() -> None:
    """Print names and bodies in every locale: as UTF-8 in the C locale, elsewhere with escapes if needed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            only_ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if only_ascii else None, errors="backslashreplace")


def _run(argv: Sequence[str] | None) -> int:
    try:
        words = decoded(sys.argv[1:]) if argv is None else list(argv)
        arguments = build_parser(words[0] if words else "").parse_args(words)
        return int(arguments.run(arguments))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else ExitCode.OK if stop.code is None else ExitCode.USAGE
    except BrokenPipeError:
        return ExitCode.OK
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (MqfastError, OSError) as error:
        return _told(error)
    except ImportError as error:
        from mqfast.pure.form import NotCompiled

        if not isinstance(error, NotCompiled):
            raise
        return _told(error)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    if not _streams_are_open():
        return ExitCode.STORAGE
    _print_whatever_it_is()
    code = _run(argv)
    flushed = _flushed()
    return code or flushed

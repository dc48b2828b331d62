"""``mqfast``: the arguments, and what an exception becomes on the way out.

It must never show a traceback for what a user or a disk may do wrong: each error is one line on stderr and an exit
code of the list below. The commands themselves are in ``store.py`` beside this file, and are imported only when one
runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from enum import IntEnum
from typing import NoReturn

from mqfast.errors import (
    CorruptFile,
    InternalError,
    MqfastError,
    OffsetError,
    StorageError,
    StoreBusy,
    StoreLocked,
    UsageError,
)

__all__ = ["ExitCode", "main"]


class ExitCode(IntEnum):
    """How the command ended."""

    OK = 0
    """Done; what was asked for is there."""
    DAMAGE_OR_NOTHING = 1
    """Damage was found, or nothing was found."""
    USAGE = 2
    """Wrong arguments or settings, or no store at the path."""
    STORAGE = 3
    """The operating system refused a file operation: full or failing disk, missing rights."""
    LOCKED = 4
    """Another process is writing the store, or it cannot take a message right now."""
    INTERNAL = 5
    """A fault of mqfast itself; please report it."""
    INTERRUPTED = 130
    """Ended by the user (control-C)."""


_EXIT_CODES = """exit codes:
  0    done
  1    damage was found, or nothing was found
  2    wrong arguments or settings, or no store at the path
  3    the operating system refused a file operation (full or failing disk, missing rights)
  4    another process is writing the store, or it is busy
  5    a fault of mqfast itself
  130  interrupted"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would print the usage as well; every error of this command is one line.
        print(f"mqfast: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)


def _whole(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("expected at least 0")
    return number


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError("expected NAME=VALUE")
    return name, value


# argparse names the function in its message.
_whole.__name__ = "number"
_time_ms.__name__ = "time"
_property.__name__ = "NAME=VALUE"


def build_parser() -> argparse.ArgumentParser:
    """Everything the command line takes."""
    from mqfast import __version__

    parser = _Parser(
        prog="mqfast",
        description="Message stores in Apache RocketMQ's file format.",
        epilog=_EXIT_CODES,
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
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = store.add_subparsers(title="commands", metavar="COMMAND", required=True)

    common = _Parser(add_help=False)
    common.add_argument("path", metavar="PATH", help="directory of the store (RocketMQ: storePathRootDir)")
    common.add_argument("--json", action="store_true", help="print one JSON object a line")
    common.add_argument(
        "--conf", metavar="FILE", help="broker.conf of the store, where its files do not tell their sizes"
    )
    body = _Parser(add_help=False)
    body.add_argument(
        "--body",
        choices=("auto", "text", "hex", "none"),
        default="auto",
        help="show bodies as text, as hex, or not (default: text where it is text)",
    )

    def command(name: str, text: str, *parents: _Parser, more: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}. {more}".strip(),
            parents=[common, *parents],
            epilog=_EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=name)
        return sub

    command("ls", "list topics and queues with their offsets")
    command("stat", "tell sizes, file counts, checkpoint, need of recovery, and settings")

    cat = command("cat", "print messages of a topic", body)
    cat.add_argument("topic", metavar="TOPIC")
    cat.add_argument("--queue", type=_whole, metavar="N", help="only this queue (default: all, one after the other)")
    cat.add_argument(
        "--offset",
        type=int,
        metavar="N",
        help="queue offset to begin at; -N: the last N messages (default: the first message)",
    )
    cat.add_argument(
        "--count", type=_whole, default=32, metavar="N", help="most messages of each queue, 0: all (default: 32)"
    )
    cat.add_argument("--tags", metavar="EXPRESSION", help="only messages with these tags: 'A || B'")

    tail = command("tail", "print messages as they are written", body, more="Until it is interrupted.")
    tail.add_argument("topic", metavar="TOPIC", nargs="?", help="only this topic (default: every record of the log)")
    tail.add_argument("--queue", type=_whole, metavar="N", help="only this queue of the topic")
    tail.add_argument("--tags", metavar="EXPRESSION", help="only messages with these tags: 'A || B'")
    tail.add_argument(
        "--from", dest="begin", type=_whole, metavar="N", help="physical offset of a record (default: the log's end)"
    )
    tail.add_argument("--count", type=_whole, default=0, metavar="N", help="stop after so many messages")
    tail.add_argument("--seconds", type=float, metavar="S", help="stop when nothing was written for so long")

    get = command("get", "print one message", body)
    get.add_argument("where", metavar="WHERE", help="physical offset, offset message id, or TOPIC/QUEUE/OFFSET")

    query = command("query", "find messages by key", body, more="Finds keys and unique keys.")
    query.add_argument("topic", metavar="TOPIC")
    query.add_argument("key", metavar="KEY")
    query.add_argument(
        "--begin",
        type=_time_ms,
        default=0,
        metavar="TIME",
        help="earliest store time: ms since the epoch, or 2026-01-31T12:00",
    )
    query.add_argument("--end", type=_time_ms, default=2**63 - 1, metavar="TIME", help="latest store time")
    query.add_argument("--max", type=_whole, default=32, metavar="N", help="most messages (default: 32)")

    put = command(
        "put",
        "store one message",
        more="Opens the store for writing, and recovers it first when its last writer did not close it.",
    )
    put.add_argument("topic", metavar="TOPIC")
    put.add_argument(
        "body", metavar="BODY", nargs="?", help="text of the message (default: all of standard input, as it is)"
    )
    put.add_argument("--queue", type=_whole, default=0, metavar="N", help="queue of the topic (default: 0)")
    put.add_argument("--tags", metavar="TAG")
    put.add_argument("--keys", metavar="KEYS", help="keys, separated by blanks")
    put.add_argument(
        "--property",
        type=_property,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property; may be given several times",
    )
    put.add_argument("--create", action="store_true", help="make the store if there is none")

    command(
        "verify",
        "check the whole store and print a damage map",
        more="Reads every record, unit and index entry. Exit code 1: there is damage.",
    )

    repair = command(
        "repair",
        "cut or rebuild what is damaged",
        more="Only torn ends are cut and derived files rebuilt; what is cut is kept aside.",
    )
    how = repair.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask")
    how.add_argument("--dry-run", action="store_true", help="only say what would be done")

    command("dump", "print every record of the log, in log order", more="Streams; bodies are given by their checksums.")

    look = rooms.add_parser(
        "doctor",
        help="tell what on this machine endangers a store or slows it",
        description="Look at filesystem, disk, limits and memory settings as a store at PATH would meet them. Changes "
        "nothing; writes a small file at PATH for a moment to measure syncs. Exit code 1: there is a danger.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    look.add_argument("path", metavar="PATH", help="directory of the store, which need not be there yet")
    look.add_argument("--json", action="store_true", help="print one JSON object a line")
    look.set_defaults(command="doctor")

    measure = rooms.add_parser("bench", help="measure puts on this machine", description="Measure on this machine.")
    measured = measure.add_subparsers(title="commands", metavar="COMMAND", required=True)
    load = measured.add_parser(
        "store",
        help="put into a new store for some seconds and tell rates and percentiles",
        description="Put into a new store for some seconds: half of them count messages, half take the time of every "
        "put. Page-cache speed (the put returned) and durable speed (the disk has it) are separate columns. "
        "`python -m mqfast.bench` measures more kinds of work.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    load.add_argument(
        "path", metavar="PATH", help="directory on the disk to measure; the store is made below it and removed again"
    )
    load.add_argument("--threads", type=_whole, default=1, metavar="N", help="putting threads (default: 1)")
    load.add_argument("--size", type=_whole, default=1024, metavar="BYTES", help="body of a message (default: 1024)")
    load.add_argument("--queues", type=_whole, default=1, metavar="N", help="queues, in turn (default: 1)")
    load.add_argument(
        "--flush", choices=("async", "sync"), default="async", help="sync: a put ends when the disk has it"
    )
    load.add_argument("--seconds", type=float, default=5.0, metavar="S", help="so long altogether (default: 5)")
    load.add_argument(
        "--max-bytes",
        type=_whole,
        metavar="BYTES",
        help="end earlier at so much log (default: 8 GiB, or a third of the disk)",
    )
    load.add_argument("--json", action="store_true", help="print one JSON object")
    load.set_defaults(command="bench")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "doctor":
        from mqfast.cli.doctor import doctor

        return int(doctor(arguments))
    if arguments.command == "bench":
        from mqfast.cli.bench import bench

        return int(bench(arguments))
    from mqfast.cli import store

    return int(store.COMMANDS[arguments.command](arguments))


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that stands for an exception."""
    # StoreLocked is a UsageError and StoreBusy an OSError: the narrow kinds come first.
    if isinstance(error, (StoreLocked, StoreBusy)):
        return ExitCode.LOCKED
    if isinstance(error, (CorruptFile, OffsetError)):
        return ExitCode.DAMAGE_OR_NOTHING
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    if isinstance(error, InternalError):
        return ExitCode.INTERNAL
    if isinstance(error, (StorageError, OSError)):
        return ExitCode.STORAGE
    return ExitCode.INTERNAL


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
        code = _run(arguments)
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

"""A test broker for programs in other languages: for the run of a command, or until a signal.

The broker is loaded after the check of the arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import FrameType

    from mqfast.testing.broker import Broker

__all__ = ["add_arguments", "broker_of", "main", "run_beside", "serve"]

ADDRESS: Final = "NAMESRV_ADDR"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_TURN_S: Final = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a test broker."""
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME[:QUEUES]", help="a topic (4 queues); may come again"
    )
    parser.add_argument("--group", action="append", default=[], metavar="NAME", help="a consumer group")
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="how many brokers (default: 1)")
    parser.add_argument("--name-servers", type=int, default=1, metavar="N", help="how many (default: 1)")
    parser.add_argument("--store", metavar="DIR", help="a directory that is kept (default: one that is removed)")
    parser.add_argument("--no-new-topics", action="store_true", help="a send to a topic that is not there fails")
    parser.add_argument("--delays", action="store_true", help="delays and retries take RocketMQ's time, not none")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the brokers, by RocketMQ's name"
    )


def broker_of(arguments: argparse.Namespace) -> Broker:
    """Return the broker of the arguments. Raises: UsageError, ConfigError."""
    from mqfast.errors import UsageError
    from mqfast.testing import Broker

    topics: dict[str, int] = {}
    for text in arguments.topic:
        name, colon, queues = text.partition(":")
        if colon and not (queues.isascii() and queues.isdigit()):
            raise UsageError(f"--topic: expected NAME or NAME:QUEUES, found {text!r}")
        topics[name] = int(queues) if colon else 4
    settings: dict[str, str] = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set: expected NAME=VALUE, found {text!r}")
        settings[name] = value
    return Broker(
        topics=topics,
        groups=arguments.group,
        brokers=arguments.brokers,
        name_servers=arguments.name_servers,
        store=arguments.store,
        auto_create_topics=not arguments.no_new_topics,
        retry_at_once=not arguments.delays,
        config=settings,
    )


@contextlib.contextmanager
def _signals(handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def serve(broker: Broker) -> None:
    """Print the address and serve until SIGTERM or control-C."""
    ended = threading.Event()
    with _signals(lambda _number, _frame: ended.set()), broker:
        print(f"{ADDRESS}={broker.namesrv_addr}", flush=True)
        ended.wait()


def _in_foreground() -> bool:
    """Return whether the process is in the foreground of a terminal, whose control-C the command gets as well."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process with short timeouts: a signal to another thread does not end a long wait."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_TURN_S)


def run_beside(broker: Broker, command: Sequence[str]) -> int:
    """Run a command with the address in its environment. Returns: its exit code; 128 plus the signal if killed.

    Raises: OSError where the command cannot be run.
    """
    with broker:
        process: subprocess.Popen[bytes] | None = None

        def forward(number: int, _frame: FrameType | None) -> None:
            if process is None or process.poll() is not None or (number == signal.SIGINT and _in_foreground()):
                return
            process.send_signal(number)

        with _signals(forward):
            process = subprocess.Popen(command, env={**os.environ, ADDRESS: broker.namesrv_addr})
            code = _end_of(process)
    return code if code >= 0 else 128 - code


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m mqfast.testing``. Returns: the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    own, command = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(
        prog="python -m mqfast.testing",
        usage="python -m mqfast.testing [OPTIONS] [-- COMMAND ...]",
        description=f"Run a command beside a test broker, with {ADDRESS} in its environment; without a command, print "
        f"{ADDRESS} and serve until SIGTERM or control-C.",
    )
    add_arguments(parser)
    arguments = parser.parse_args(own)
    from mqfast.errors import MqfastError

    try:
        broker = broker_of(arguments)
        if command:
            return run_beside(broker, command)
        serve(broker)
    except (MqfastError, OSError, ModuleNotFoundError) as error:
        print(f"mqfast.testing: {error}", file=sys.stderr)
        return 2
    return 0

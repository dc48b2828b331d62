"""``mqfast namesrv``: a name server until SIGTERM or control-C.

asyncio and the name server are imported when the command runs, so that other commands start fast.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from mqfast.cli.arguments import Parser, name_value
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.namesrv.namesrv_config import NamesrvConfig
__all__ = ["add_commands"]


def add_commands(rooms: argparse._SubParsersAction[Parser]) -> None:
    """Add ``namesrv``."""
    sub = rooms.add_parser(
        "namesrv",
        help="run a name server",
        description="Run a name server for RocketMQ's brokers and clients until SIGTERM or control-C. It listens on "
        "127.0.0.1 unless bindAddress or --host says otherwise. Needs the extra mqfast[broker].",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("-c", "--conf", metavar="FILE", help="property file with RocketMQ's names, as namesrv.properties")
    sub.add_argument("-p", "--port", metavar="PORT", help="listenPort (default: 9876; 0: a free one)")
    sub.add_argument("--host", metavar="ADDRESS", help="bindAddress (default: 127.0.0.1; 0.0.0.0: every interface)")
    sub.add_argument("--print-config", action="store_true", help="print the settings and end")
    sub.add_argument("--strict", action="store_true", help="do not start when a setting is unknown")
    sub.add_argument(
        "settings", nargs="*", type=name_value, metavar="NAME=VALUE", help="settings; they go before those of -c"
    )
    sub.places_anywhere = True
    sub.set_defaults(run=run, command="namesrv")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Serve."""
    try:
        from mqfast.namesrv.server import NameServer
    except ModuleNotFoundError as error:
        if error.name not in ("msgspec",):
            raise
        raise ConfigError(f"mqfast namesrv needs {error.name}: pip install 'mqfast[broker]'") from None
    config = _config(arguments)
    if arguments.print_config:
        print(config.text(), end="")
        return ExitCode.OK
    for line in config.warnings:
        with contextlib.suppress(OSError):  # a full disk loses the lines, not the server
            print(f"mqfast: {line}", file=sys.stderr)
    if arguments.strict and config.unknown:
        raise ConfigError(f"unknown settings: {', '.join(config.unknown)}")
    _log_to_stderr()
    from mqfast.cli.serving import serve
    from mqfast.remoting.loop import runner

    server = NameServer(config)
    with runner() as loop:
        loop.run(serve(server, lambda: _banner(*server.address, server.tls)))
    return ExitCode.OK


def _config(arguments: argparse.Namespace) -> NamesrvConfig:
    from mqfast.namesrv.namesrv_config import NamesrvConfig

    config = NamesrvConfig()
    if arguments.conf:
        config.read_file(arguments.conf)
    config.update(dict(arguments.settings), "command line")
    given = {"listenPort": arguments.port, "bindAddress": arguments.host}
    config.update({name: value for name, value in given.items() if value is not None}, "command line")
    return config


def _log_to_stderr() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")


def _banner(host: str, port: int, tls: str) -> str:
    from mqfast import __version__

    shown = f"[{host}]" if ":" in host else host
    if host in ("127.0.0.1", "::1"):
        reach = "this machine only; --host 0.0.0.0 opens it"
    elif host in ("0.0.0.0", "::"):
        reach = "every interface; there is no access control"
        shown = "127.0.0.1"
    else:
        reach = "there is no access control"
    return f"mqfast namesrv {__version__} listens on {host}:{port} ({reach}; TLS: {tls}): NAMESRV_ADDR={shown}:{port}"

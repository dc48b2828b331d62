"""``mqfast console`` and ``mqfast mcp``: faces of a cluster for people and for language models.

The libraries of the extras are imported when a command runs.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path

from mqfast.cli.arguments import Parser
from mqfast.cli.connecting import add_credentials, add_tls, credentials_of, tls_context_of
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.errors import ConfigError

__all__ = ["add_commands"]

_TOKEN = "MQFAST_CONSOLE_TOKEN"
_TOKEN_LEAST = 16


def add_commands(rooms: argparse._SubParsersAction[Parser]) -> None:
    """Add ``console`` and ``mcp``."""
    sub = rooms.add_parser(
        "console",
        help="a web page on clusters: lag, queues, messages, dead letters",
        description="Serve a web page on clusters of Apache RocketMQ's brokers and ours. Read-only without "
        "--allow-changes. Needs the extra mqfast[console].",
        epilog=f"example:\n  mqfast console -n 127.0.0.1:9876\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_connection(sub)
    sub.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="to listen on (default: 127.0.0.1)")
    sub.add_argument("--port", type=int, metavar="PORT", default=8099, help="(default: 8099)")
    sub.add_argument("--allow-changes", action="store_true", help="resets, resends and test messages as well")
    sub.add_argument(
        "--token-file", metavar="FILE", help=f"a file whose first line is the token of the login (default: {_TOKEN}, "
        "else a new token, which is printed)",
    )  # fmt: skip
    sub.add_argument(
        "--interval", type=float, metavar="SECONDS", default=10.0, help="from round to round at least (default: 10)"
    )
    sub.add_argument(
        "--stuck-after", type=float, metavar="SECONDS", default=30.0,
        help="a member counts as stuck in a message from then on (default: 30)",
    )  # fmt: skip
    sub.add_argument(
        "--public-name", metavar="NAME", action="append", default=[],
        help="a host name under which browsers reach the console, by a proxy (may be given several times)",
    )  # fmt: skip
    sub.add_argument("--snapshot", metavar="FILE", help="write the state into one HTML file, and end")
    sub.set_defaults(run=console, command="console")
    server = rooms.add_parser(
        "mcp",
        help="an MCP server on clusters, for language models, over standard input and output",
        description="Serve tools of the Model Context Protocol over standard input and output: clusters, lag, why a "
        "group is slow, messages, dead letters. Read-only without --allow-changes. Needs the extra mqfast[mcp].",
        epilog=f"example:\n  mqfast mcp -n 127.0.0.1:9876\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_connection(server)
    server.add_argument("--allow-changes", action="store_true", help="resets and resends, each planned and confirmed")
    server.add_argument("--show-bodies", action="store_true", help="bodies of messages as well")
    server.set_defaults(run=mcp, command="mcp")


def _add_connection(sub: Parser) -> None:
    sub.add_argument("-n", "--namesrv", metavar="ADDRESS", help="name servers: 'a:9876;b:9876' (default: NAMESRV_ADDR)")
    sub.add_argument("--timeout", type=float, metavar="SECONDS", default=5.0, help="for each request (default: 5)")
    add_tls(sub)
    add_credentials(sub)


def console(arguments: argparse.Namespace) -> ExitCode:
    """Serve the console until a signal, or write a snapshot."""
    for name in ("interval", "stuck_after"):
        if not 0 < getattr(arguments, name) <= 3600:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option}: expected more than 0 and at most 3600, found {getattr(arguments, name)}")
    try:
        from mqfast.console.serve import ConsoleServer, write_snapshot
    except ModuleNotFoundError as error:
        raise _missing(error, "console") from None
    import asyncio

    from mqfast.cli.serving import serve

    connection = {
        "credentials": credentials_of(arguments), "tls": tls_context_of(arguments) or False,
        "timeout_s": arguments.timeout,
    }  # fmt: skip
    if arguments.snapshot:
        asyncio.run(write_snapshot(arguments.namesrv, Path(arguments.snapshot), **connection))
        return ExitCode.OK
    token, is_new = _token(arguments)

    async def run() -> None:
        server = ConsoleServer(
            arguments.namesrv,
            token=token,
            host=arguments.host,
            port=arguments.port,
            allow_changes=arguments.allow_changes,
            interval_s=arguments.interval,
            stuck_after_s=arguments.stuck_after,
            public_names=arguments.public_name,
            **connection,
        )
        if arguments.host not in ("127.0.0.1", "::1", "localhost"):
            print("the console has no TLS: put a proxy with TLS before it", file=sys.stderr)

        def banner() -> str:
            host, port = server.address
            lines = [f"CONSOLE=http://{f'[{host}]' if ':' in host else host}:{port}"]
            if is_new:
                lines.append(f"TOKEN={token}")
            lines.append(
                "changes are allowed" if arguments.allow_changes else "read-only; --allow-changes allows changes"
            )
            return "\n".join(lines)

        await serve(server, banner)

    asyncio.run(run())
    return ExitCode.OK


def mcp(arguments: argparse.Namespace) -> ExitCode:
    """Serve the Model Context Protocol until standard input ends."""
    try:
        from mqfast.console.parts import console_of
        from mqfast.mcp.server import mcp_server
    except ModuleNotFoundError as error:
        raise _missing(error, "mcp") from None
    import asyncio

    async def run() -> None:
        parts = console_of(
            arguments.namesrv,
            allow_changes=arguments.allow_changes,
            credentials=credentials_of(arguments),
            tls=tls_context_of(arguments) or False,
            timeout_s=arguments.timeout,
        )
        try:
            await mcp_server(parts, show_bodies=arguments.show_bodies).run_stdio_async()
        finally:
            await parts.admin.close()

    asyncio.run(run())
    return ExitCode.OK


def _token(arguments: argparse.Namespace) -> tuple[str, bool]:
    """Return the token of the login, and whether the token is new."""
    if arguments.token_file:
        where = f"--token-file {arguments.token_file}"
        try:
            token = Path(arguments.token_file).read_text("utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: {error}") from None
    elif _TOKEN in os.environ:
        where, token = _TOKEN, os.environ[_TOKEN].strip()
    else:
        return secrets.token_urlsafe(24), True
    if len(token) < _TOKEN_LEAST:
        raise ConfigError(f"{where}: expected at least {_TOKEN_LEAST} characters, found {len(token)}")
    return token, False


def _missing(error: ModuleNotFoundError, extra: str) -> Exception:
    if (error.name or "").startswith("mqfast"):
        return error
    return ConfigError(f"mqfast {extra} needs {error.name}: pip install 'mqfast[{extra}]'")

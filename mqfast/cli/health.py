"""``mqfast health``: a check that a server answers, for Docker, systemd and scripts, within the given time."""

from __future__ import annotations

import argparse
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mqfast.cli.arguments import Parser
from mqfast.cli.connecting import add_tls, tls_context_of
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = ["add_commands"]

_CHECK_CLIENT_CONFIG = 46  # any answer, a refusal as well, proves that the server is alive


def add_commands(rooms: argparse._SubParsersAction[Parser]) -> None:
    """Add ``health``."""
    sub = rooms.add_parser(
        "health",
        help="ask whether a name server or broker answers",
        description="Ask a name server or broker whether it answers: its port (--port), or its HTTP page (--url), as "
        "http://127.0.0.1:5557/health.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = sub.add_mutually_exclusive_group()
    which.add_argument("--port", type=int, metavar="PORT", default=10911, help="(default: 10911)")
    which.add_argument("--url", metavar="URL", help="its answer is to be 200")
    sub.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="(default: 127.0.0.1)")
    sub.add_argument("--timeout", type=float, metavar="SECONDS", default=3.0, help="(default: 3)")
    add_tls(sub)
    sub.set_defaults(run=run, command="health")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Send one request."""
    try:
        if arguments.url:
            said = _ask_http(arguments.url, arguments.timeout)
        else:
            said = _ask_port(arguments.host, arguments.port, arguments.timeout, tls_context_of(arguments))
    except OSError as error:
        print(f"no answer: {error}")
        return ExitCode.NO_ANSWER
    print(said)
    return ExitCode.OK if said == "200" or not arguments.url else ExitCode.NO_ANSWER


def _ask_http(url: str, timeout_s: float) -> str:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"--url: expected http://host:port/path, found {url!r}")
    with socket.create_connection((parts.hostname, parts.port or 80), timeout_s) as peer:
        peer.sendall(f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        words = peer.makefile("rb").readline(1024).split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise OSError("expected an answer of HTTP, found another")
    return words[1].decode("ascii", "replace")


def _ask_port(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> str:
    from mqfast.remoting.command import FrameDecoder, RemotingCommand, encode
    from mqfast.remoting.tls import WANTS_TLS

    decoder = FrameDecoder()
    with _connected(host, port, timeout_s, tls) as peer:
        peer.sendall(encode(RemotingCommand(_CHECK_CLIENT_CONFIG)))
        while True:
            data = peer.recv(65536)
            if not data:
                hint = "" if tls else f"; does {host}:{port} want TLS? --tls asks with it"
                raise OSError(f"the connection ended without an answer{hint}")
            if answers := decoder.feed(data):
                if tls is None and answers[0].remark == WANTS_TLS:
                    raise OSError(f"{host}:{port} wants TLS: --tls asks with it")
                return f"{host}:{port} answers{' with TLS' if tls else ''}"
            if decoder.error is not None:
                raise OSError(f"expected an answer of RocketMQ: {decoder.error}")


def _connected(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    peer = socket.create_connection((host, port), timeout_s)
    if tls is None:
        return peer
    import ssl

    try:
        return tls.wrap_socket(peer, server_hostname=host if tls.check_hostname else None)
    except ssl.SSLCertVerificationError as error:
        peer.close()
        raise OSError(f"{host}:{port}: its certificate is not trusted: {error.verify_message}") from None
    except OSError as error:
        peer.close()
        raise OSError(f"{host}:{port} takes no TLS: {error}; leave out --tls, --ca and --cert") from None

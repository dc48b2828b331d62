"""The arguments by which ``admin``, ``ha`` and ``health`` connect to servers: TLS and credentials.

No secret is printed. The client is imported when a command runs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqfast.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    from mqfast.client.values import Credentials

__all__ = ["add_credentials", "add_tls", "credentials_of", "tls_context_of"]

TLS: Final = "MQFAST_TLS"
CA: Final = "MQFAST_TLS_CA"
CERTIFICATE: Final = "MQFAST_TLS_CERT"
KEY: Final = "MQFAST_TLS_KEY"
NO_HOST_CHECK: Final = "MQFAST_TLS_NO_HOST_CHECK"


def add_tls(parser: argparse.ArgumentParser, *, owns_key: bool = False) -> None:
    """Add ``--tls`` and the options of TLS. Args: owns_key: the command has a ``--key`` of its own."""
    parser.add_argument("--tls", action="store_true", help=f"connect with TLS (variable {TLS}=true)")
    for name, text in {
        "ca": f"certificates that are trusted; means --tls (default: {CA}, else the system's)",
        "cert": f"this client's certificate; means --tls (default: {CERTIFICATE})",
        "key": f"its key, without a password (default: {KEY}, else the file of --cert)",
    }.items():
        names = [f"--tls-{name}"] if owns_key and name == "key" else [f"--{name}", f"--tls-{name}"]
        parser.add_argument(*names, dest=f"tls_{name}", metavar="FILE", help=text)
    parser.add_argument(
        "--no-host-check",
        action="store_true",
        help=f"trust a certificate whatever host it names, as RocketMQ's clients do (variable {NO_HOST_CHECK}=true)",
    )


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Add ``--access-key`` and ``--secret-key``."""
    parser.add_argument(
        "--access-key", metavar="KEY", help="whom requests are signed for (default: ROCKETMQ_ACCESS_KEY)"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--secret-key-file", metavar="FILE", help="a file whose first line is the secret (default: ROCKETMQ_SECRET_KEY)"
    )
    which.add_argument(
        "--secret-key", metavar="SECRET", help="the secret itself; other users of this machine may see it"
    )


def tls_context_of(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the context of connections; None for plain connections. Raises: ConfigError for an unusable file."""
    import ssl  # not for the help of other commands

    ca = arguments.tls_ca or os.environ.get(CA)
    certificate = arguments.tls_cert or os.environ.get(CERTIFICATE)
    key = arguments.tls_key or os.environ.get(KEY)
    if not (arguments.tls or _is_set(TLS) or ca or certificate or key):
        return None
    if key and not certificate:
        raise ConfigError("--key: expected together with --cert, found alone")
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:  # ssl.SSLError as well
        raise ConfigError(f"--ca {ca}: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None, lambda: "")
        except OSError as error:
            raise ConfigError(f"--cert {certificate}, --key {key or certificate}: {error}") from None
    if arguments.no_host_check or _is_set(NO_HOST_CHECK):
        context.check_hostname = False
    return context


def credentials_of(arguments: argparse.Namespace) -> Credentials | None:
    """Return the credentials of arguments or variables; None without credentials. Raises: ConfigError."""
    access = arguments.access_key or os.environ.get("ROCKETMQ_ACCESS_KEY")
    secret = arguments.secret_key or os.environ.get("ROCKETMQ_SECRET_KEY")
    if arguments.secret_key_file:
        try:
            secret = Path(arguments.secret_key_file).read_text("utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--secret-key-file {arguments.secret_key_file}: {error}") from None
    if not access and not secret:
        return None
    if not access or not secret:
        missing, given = ("access key", "a secret") if not access else ("secret", "an access key")
        raise ConfigError(f"credentials: expected an access key and a secret, found {given} and no {missing}")
    from mqfast.client.values import Credentials

    return Credentials(access, secret, os.environ.get("ROCKETMQ_SECURITY_TOKEN") or None)


def _is_set(variable: str) -> bool:
    """Return the value of a variable with true or false. Raises: ConfigError for another text."""
    text = os.environ.get(variable, "").strip().lower()
    if text in ("", "0", "false", "no"):
        return False
    if text in ("1", "true", "yes"):
        return True
    raise ConfigError(f"{variable}: expected true or false, found {text!r}")

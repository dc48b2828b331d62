"""TLS on the port of plain connections: records in, plain bytes out, and back; the first byte distinguishes both.

No I/O except certificate files: the records are in memory. Source: NettyRemotingServer's handshake handler,
TlsSystemConfig, TlsHelper.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from mqfast.errors import ConfigError, FrameError

__all__ = [
    "CLIENT_HELLO",
    "ServerCertificates",
    "TlsMode",
    "TlsStream",
    "WANTS_TLS",
    "client_context",
    "server_context",
]

CLIENT_HELLO: Final = 0x16
"""First byte of every TLS connection; a plain connection begins with 0."""
WANTS_TLS: Final = "this port wants TLS, and the request came without"
"""Remark of the response to a plain client where TLS is enforced."""
_FILES: Final = ("tls.server.certPath", "tls.server.keyPath", "tls.server.trustCertPath")


class TlsMode(StrEnum):
    """RocketMQ: tls.server.mode."""

    DISABLED = "disabled"
    """A TLS connection is closed."""
    PERMISSIVE = "permissive"
    """Both are accepted; TLS only where there is a certificate."""
    ENFORCING = "enforcing"
    """A plain connection is closed."""

    @classmethod
    def of(cls, text: str) -> TlsMode:
        """Return the mode of a setting. Raises: ConfigError."""
        try:
            return cls(text.strip().lower())
        except ValueError:
            raise ConfigError(f"tls.server.mode: expected disabled, permissive or enforcing, found {text!r}") from None

    def in_words(self, *, has_certificate: bool) -> str:
        """Return the mode for clients: off, permissive or enforcing."""
        if self is TlsMode.ENFORCING:
            return "enforcing" if has_certificate else "enforcing without a certificate: nothing can connect"
        if self is TlsMode.PERMISSIVE and has_certificate:
            return "permissive"
        return "off"


class TlsStream:
    """The TLS of a connection, with the records in memory.

    Args: context: with the certificates; server_side: False at the side that connected.
    Attributes: ``established``: the handshake is done; ``ended``: the peer sends no more.
    """

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server_side, server_hostname=host if context.check_hostname else None
        )
        self._waiting: list[bytes] = []
        self.established = False
        self.ended = False
        if not server_side:
            self.receive(b"")

    def receive(self, data: bytes) -> bytes:
        """Decrypt records. Returns: the plain bytes. Raises: FrameError for other bytes than TLS."""
        self._in.write(data)
        plain = bytearray()
        try:
            if not self.established:
                self._tls.do_handshake()
                self.established = True
                waiting, self._waiting = self._waiting, []
                for path in waiting:
                    self._tls.write(path)
            while chunk := self._tls.read(65536):
                plain += chunk
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            more = f": {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else ""
            raise FrameError(f"TLS: {error.reason or error}{more}") from None
        return bytes(plain)

    def send(self, data: bytes) -> None:
        """Encrypt bytes; before the handshake is done the bytes wait."""
        if not self.established:
            self._waiting.append(data)
        elif not self.ended:
            self._tls.write(data)

    def close(self) -> None:
        """Send the end of the TLS connection."""
        if self.established:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()

    def peer_certificate(self) -> dict[str, Any] | None:
        """Return the peer's certificate, where it was requested and checked."""
        return dict(self._tls.getpeercert() or {}) or None

    def records(self) -> bytes:
        """Return the bytes to send now."""
        return self._out.read()


def server_context(settings: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the context of a server from the keys of RocketMQ's tls.properties; None where no certificate is named.

    ``tls.server.certPath`` and ``tls.server.keyPath`` (``tls.server.keyPassword``), ``tls.server.trustCertPath``,
    ``tls.server.need.client.auth`` (none, optional, require). Raises: ConfigError.
    """
    certificate, key = settings.get("tls.server.certPath"), settings.get("tls.server.keyPath")
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])  # for gRPC; a client of remoting offers no protocol
    _load(context, certificate, key, settings.get("tls.server.keyPassword"))
    asked = settings.get("tls.server.need.client.auth", "none").strip().lower()
    modes = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}
    if asked not in modes:
        raise ConfigError(f"tls.server.need.client.auth: expected none, optional or require, found {asked!r}")
    if modes[asked] is not ssl.CERT_NONE:
        _trust(context, settings.get("tls.server.trustCertPath"), "tls.server.trustCertPath")
    context.verify_mode = modes[asked]
    return context


class ServerCertificates:
    """The context of a server, created again when one of its files has changed: certificates expire, and are renewed.

    Open connections keep the certificate of their begin. Files that do not match, or cannot be read, leave the previous
    context in force: a new key may be written before its certificate.

    Args: settings: as those of ``server_context``; logger: logs a change.
    Raises: ConfigError.
    Attributes: ``context``: for the next connection; None where no certificate is named.
    Source: BrokerController.initialize, FileWatchService.
    """

    def __init__(self, settings: Mapping[str, str], logger: logging.Logger) -> None:
        self._settings: Final = dict(settings)
        self._log: Final = logger
        self._seen = self._times()
        self.context = server_context(self._settings)

    def _times(self) -> dict[str, tuple[int, int, int] | None]:
        stamps: dict[str, tuple[int, int, int] | None] = {}
        for name in _FILES if self._settings.get(_FILES[0]) else ():
            if path := self._settings.get(name):
                try:
                    status = os.stat(path)
                except OSError:
                    stamps[path] = None
                else:
                    stamps[path] = status.st_mtime_ns, status.st_size, status.st_ino
        return stamps

    def reload_if_changed(self) -> bool:
        """Read the files again where a file has changed. Returns: whether the context is another one."""
        times = self._times()
        if times == self._seen:
            return False
        self._seen = times
        try:
            self.context = server_context(self._settings)
        except ConfigError as error:
            self._log.error("the certificate of before stays in force: %s", error)
            return False
        self._log.info("TLS: read again: %s", ", ".join(times))
        return True


def client_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context of a client, from the ``tls.client.*`` keys of RocketMQ's tls.properties.

    As in RocketMQ the host name is not checked; the certificate is, when ``tls.client.authServer`` is true. Raises:
    ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if settings.get("tls.client.authServer", "false").strip().lower() == "true":
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, settings.get("tls.client.trustCertPath"), "tls.client.trustCertPath")
    if certificate := settings.get("tls.client.certPath"):
        _load(context, certificate, settings.get("tls.client.keyPath"), settings.get("tls.client.keyPassword"))
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str | None, password: str | None) -> None:
    try:
        context.load_cert_chain(certificate, key or None, password or (lambda: ""))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS: certificate {certificate} with key {key}: {error}") from None


def _trust(context: ssl.SSLContext, path: str | None, name: str) -> None:
    if not path:
        raise ConfigError(f"{name}: expected the file of the certificates that are trusted, found none")
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{name} {path}: {error}") from None

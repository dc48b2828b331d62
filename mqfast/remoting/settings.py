"""The limits of a server or client, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from mqfast.remoting.codes import LanguageCode
from mqfast.remoting.command import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from mqfast.remoting.tls import TlsMode

__all__ = ["RemotingSettings"]


@dataclass(frozen=True, slots=True)
class RemotingSettings:
    """Limits of a server or a client.

    Attributes:
        frame_bytes_max: longest accepted frame (RocketMQ: com.rocketmq.remoting.frameMaxLength).
        header_bytes_max: longest accepted header.
        connections_max: connections at once; further ones are closed at once.
        buffered_bytes_max: bytes of incomplete frames of all connections together; beyond that the connection with the
        most is closed.
        idle_timeout_s: a connection without a byte either way for this long is closed (RocketMQ:
        serverChannelMaxIdleTimeSeconds).
        handshake_timeout_s: limit of a PROXY header and a TLS handshake.
        write_high_bytes, write_low_bytes: a peer with more unread bytes than the first is not read, until fewer than
        the second are left.
        requests_max: open requests of one connection; request_bytes_max: of their bodies. Beyond that the connection is
        not read.
        calls_max: requests of this side over one connection that may wait for responses.
        proxy_protocol: accept a PROXY header (RocketMQ always does).
        tls_mode: RocketMQ's tls.server.mode.
        language: the language field of the requests of this side.
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX
    connections_max: int = 50_000
    buffered_bytes_max: int = 512 * 1024 * 1024
    idle_timeout_s: float = 120.0
    handshake_timeout_s: float = 10.0
    write_high_bytes: int = 1024 * 1024
    write_low_bytes: int = 256 * 1024
    requests_max: int = 10_000
    request_bytes_max: int = 64 << 20
    calls_max: int = 65_535
    proxy_protocol: bool = True
    tls_mode: TlsMode = TlsMode.PERMISSIVE
    language: int = LanguageCode.JAVA

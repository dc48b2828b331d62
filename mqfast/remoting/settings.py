"""The limits of a server or client, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from mqfast.remoting.codes import LanguageCode
from mqfast.remoting.command import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from mqfast.remoting.tls import TlsMode
from mqfast.settings.declaration import setting

__all__ = ["RemotingSettings"]


@dataclass(frozen=True, slots=True)
class RemotingSettings:
    """Limits of a server or a client.

    ``tls_mode``: RocketMQ's tls.server.mode; ``language``: the language code in requests of this endpoint.
    """

    frame_bytes_max: int = setting(
        FRAME_BYTES_MAX, "com.rocketmq.remoting.frameMaxLength", "bytes", "Longest accepted frame."
    )
    header_bytes_max: int = setting(HEADER_BYTES_MAX, None, "bytes", "Longest accepted header.")
    connections_max: int = setting(50_000, None, "connections", "Connections at once; a further one is closed at once.")
    buffered_bytes_max: int = setting(
        512 * 1024 * 1024,
        None,
        "bytes",
        "Bytes of incomplete frames of all connections together; above, the connection with most bytes is closed.",
    )
    idle_timeout_s: float = setting(
        120.0,
        "serverChannelMaxIdleTimeSeconds",
        "s",
        "A connection without a byte in either direction for this long is closed.",
    )
    handshake_timeout_s: float = setting(10.0, None, "s", "Time limit of a PROXY preamble and a TLS handshake.")
    write_high_bytes: int = setting(
        1024 * 1024, None, "bytes", "A peer with more unread bytes is not read, until write_low_bytes."
    )
    write_low_bytes: int = setting(256 * 1024, None, "bytes", "Unread bytes of a peer below which reading resumes.")
    requests_max: int = setting(
        10_000, None, "requests", "Open requests of one connection; above, the connection is not read."
    )
    request_bytes_max: int = setting(
        64 << 20, None, "bytes", "Bodies of open requests of one connection; above, the connection is not read."
    )
    calls_max: int = setting(
        65_535, None, "requests", "Requests of this endpoint over one connection that may wait for responses."
    )
    proxy_protocol: bool = setting(True, None, "", "Accept a PROXY preamble, as RocketMQ always does.")
    selector_threads: int = setting(
        0, "serverSelectorThreads", "threads", "Reactor threads of a server on Linux; 0: the event loop serves all."
    )
    tls_mode: TlsMode = TlsMode.PERMISSIVE
    language: int = LanguageCode.JAVA

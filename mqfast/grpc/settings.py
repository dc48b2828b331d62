"""The limits of gRPC connections, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from mqfast.settings.declaration import setting

__all__ = ["GrpcSettings"]


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Limits of a gRPC server, each for one connection."""

    streams_max: int = setting(1000, None, "calls", "Open calls of a connection; a client waits before it opens more.")
    header_bytes_max: int = setting(16384, None, "bytes", "Names and values of a call's headers.")
    message_bytes_max: int = setting(16 << 20, "grpcMaxInboundMessageSize", "bytes", "Longest accepted message.")
    held_bytes_max: int = setting(64 << 20, None, "bytes", "Messages of calls that are not answered.")
    unsent_bytes_max: int = setting(
        64 << 20, None, "bytes", "Answers that the client has not read; above, further calls are refused."
    )
    idle_timeout_s: float = setting(120.0, "grpcClientIdleTimeMills", "s", "A connection without a byte is closed.")

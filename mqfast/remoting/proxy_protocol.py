"""The PROXY header of a load balancer with the client's address: PROXY protocol, version 1 (text) and 2 (binary).

The first byte distinguishes the header: a frame below 16 MiB begins with 0, TLS with 0x16. Protocol: haproxy.org,
proxy-protocol.txt.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final

from mqfast.errors import FrameError
from mqfast.util.java_text import java_whole

__all__ = ["ProxyHeader"]

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V1: Final = b"PROXY "
_V1_BYTES_MAX: Final = 107
_V2_BYTES_MAX: Final = 16 + 2048


class ProxyHeader:
    """Reads a PROXY header at the begin of a connection, if there is one.

    Attributes: ``peer``: (host, port) of the header; None without a header or an address.
    """

    def __init__(self) -> None:
        self.peer: tuple[str, int] | None = None
        self._held = b""

    @property
    def has_begun(self) -> bool:
        """Return whether there are bytes that may be the begin of a header."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes | None:
        """Take the first bytes. Returns: the bytes after the header; None: more are needed. Raises: FrameError."""
        self._held += data
        held = self._held
        if not held:
            return None
        if _begins(held, _V1):
            return self._text(held)
        if _begins(held, _SIGNATURE):
            return self._binary(held)
        return held

    def _text(self, held: bytes) -> bytes | None:
        line, end, rest = held.partition(b"\r\n")
        if not end:
            if len(held) >= _V1_BYTES_MAX:
                raise FrameError(f"PROXY preamble: expected at most {_V1_BYTES_MAX} bytes, found no end of line")
            return None
        words = line.split(b" ")
        if words[1:2] == [b"UNKNOWN"]:
            return rest
        try:
            kind, source, _, port, _ = (word.decode("ascii") for word in words[1:])
            address = ipaddress.IPv4Address(source) if kind == "TCP4" else ipaddress.IPv6Address(source)
            if kind not in ("TCP4", "TCP6") or not 0 <= java_whole(port) <= 65535:
                raise ValueError
        except ValueError:
            raise FrameError(
                f"PROXY preamble: expected TCP4 or TCP6, two addresses, two ports, found {line!r}"
            ) from None
        self.peer = (str(address), java_whole(port))
        return rest

    def _binary(self, held: bytes) -> bytes | None:
        if len(held) < 16:
            return None
        command, family, size = struct.unpack_from(">BBH", held, 12)
        if command not in (0x20, 0x21) or size + 16 > _V2_BYTES_MAX:
            raise FrameError(
                f"PROXY preamble: expected version 2, command 0 or 1, at most {_V2_BYTES_MAX} bytes, "
                f"found {held[12:16]!r}"
            )
        if len(held) < 16 + size:
            return None
        if command == 0x21:  # 0x20: the balancer's own health check
            if family == 0x11 and size >= 12:
                self.peer = (str(ipaddress.IPv4Address(held[16:20])), int.from_bytes(held[24:26], "big"))
            elif family == 0x21 and size >= 36:
                self.peer = (str(ipaddress.IPv6Address(held[16:32])), int.from_bytes(held[48:50], "big"))
        return held[16 + size :]


def _begins(held: bytes, signature: bytes) -> bool:
    return held[: len(signature)] == signature[: len(held)]

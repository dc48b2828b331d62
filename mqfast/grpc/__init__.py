"""gRPC over HTTP/2: connections, calls and the messages of RocketMQ's API 2; imports no store and no broker."""

from __future__ import annotations

from importlib import import_module
from typing import Final

try:
    import_module("mqfast.grpc.http2")
except ImportError as error:  # not built, or the library is gone
    _missing = str(error)
else:
    _missing = ""

__all__ = ["FIRST_BYTE", "IS_BUILT", "NOT_BUILT"]

FIRST_BYTE: Final = ord("P")
"""First byte of an HTTP/2 connection; a frame of remoting would have more than a GiB."""
IS_BUILT: Final = not _missing
"""Whether this build has HTTP/2."""
NOT_BUILT: Final = f"HTTP/2 is missing; install libnghttp2-dev (Debian, Ubuntu) and build again ({_missing})"

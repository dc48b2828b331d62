"""gRPC over HTTP/2: connections, calls and the messages of RocketMQ's API 2; imports no store and no broker."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

__all__ = ["FIRST_BYTE", "IS_BUILT", "NOT_BUILT"]

FIRST_BYTE: Final = ord("P")
"""First byte of an HTTP/2 connection; a frame of remoting would have more than a GiB."""
IS_BUILT: Final = find_spec("mqfast.grpc.http2") is not None
"""Whether this build has HTTP/2."""
NOT_BUILT: Final = "this build has no HTTP/2; install libnghttp2-dev (Debian, Ubuntu) and build again"

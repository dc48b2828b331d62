"""Commands and their bytes: the public names of ``codec.pyx`` and ``headers.pyx``."""

from __future__ import annotations

from mqfast.remoting.codec import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    JSON,
    ROCKETMQ,
    VERSION,
    FrameDecoder,
    RemotingCommand,
    encode,
    repeated_name,
    signed_parts,
)
from mqfast.remoting.headers import (
    OffsetHeader,
    PullHeader,
    SendAnswer,
    SendHeader,
    offset_header,
    pull_header,
    send_answer,
    send_header,
)

__all__ = [
    "FRAME_BYTES_MAX",
    "HEADER_BYTES_MAX",
    "JSON",
    "ONEWAY",
    "RESPONSE",
    "ROCKETMQ",
    "VERSION",
    "Buffer",
    "FrameDecoder",
    "OffsetHeader",
    "PullHeader",
    "RemotingCommand",
    "SendAnswer",
    "SendHeader",
    "encode",
    "offset_header",
    "pull_header",
    "repeated_name",
    "send_answer",
    "send_header",
    "signed_parts",
]

RESPONSE = 1
"""Bit of ``flag``: this frame is a response."""
ONEWAY = 2
"""Bit of ``flag``: a oneway request, without a response."""

Buffer = bytes | bytearray | memoryview
"""Bytes of a frame, or a part of a body."""

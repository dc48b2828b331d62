"""Types of codec.pyx; what each part does is described there."""

from collections.abc import Sequence
from typing import Any

from mqfast.errors import FrameError

_Buffer = bytes | bytearray | memoryview

JSON: int
ROCKETMQ: int
FRAME_BYTES_MAX: int
HEADER_BYTES_MAX: int
VERSION: int
LANGUAGES: tuple[str, ...]

class RemotingCommand:
    def __init__(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[_Buffer] = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: int = 0,
        version: int = ...,
        serialize: int = 0,
    ) -> None: ...
    opaque: int
    received_s: float
    was_held: bool
    @property
    def code(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def language(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def serialize(self) -> int: ...
    @property
    def remark(self) -> str | None: ...
    @property
    def body(self) -> Any: ...
    @property
    def is_response(self) -> bool: ...
    @property
    def is_oneway(self) -> bool: ...
    @property
    def ext_fields(self) -> dict[str, Any]: ...
    def response(
        self,
        code: int = 0,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[_Buffer] = b"",
        *,
        remark: str | None = None,
    ) -> RemotingCommand: ...

class FrameDecoder:
    def __init__(self, frame_bytes_max: int = ..., header_bytes_max: int = ...) -> None: ...
    @property
    def error(self) -> FrameError | None: ...
    @property
    def buffered(self) -> int: ...
    def feed(self, data: _Buffer) -> list[RemotingCommand]: ...

def encode(command: RemotingCommand, with_body: bool = True) -> bytes: ...
def repeated_name(command: RemotingCommand) -> str | None: ...
def signed_parts(command: RemotingCommand) -> tuple[str | None, str | None, bytes] | None: ...

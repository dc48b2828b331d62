"""Types of wire.pyx; what each part does is described there."""

from collections.abc import Callable
from typing import Any

TEXT: int
BYTES: int
INT32: int
INT64: int
BOOL: int
FLOAT: int
DURATION: int
TIMESTAMP: int
MESSAGE: int
MAP: int

class Field:
    def __init__(
        self, number: int, name: str, kind: int, is_repeated: bool, is_optional: bool, codec: Codec | None
    ) -> None: ...

class Codec:
    def __init__(self, make: Callable[[], Any], name: str, fields: list[Field]) -> None: ...
    def decode(self, data: bytes) -> Any: ...
    def encode(self, message: Any) -> bytes: ...

"""Types of _encode.pyx; what each part does is described there."""

from collections.abc import Callable
from typing import Any

from mqfast.remoting.command import Buffer

class UniqueIds:
    def __init__(self, head: bytes, clock: Callable[[], float], month: Callable[[float], tuple[int, int]]) -> None: ...
    def next(self) -> str: ...

class SendHead:
    def __init__(self, code: int, fields: dict[str, Any], version: int, language: str) -> None: ...
    @property
    def fields(self) -> dict[str, Any]: ...
    @property
    def code(self) -> int: ...
    def frame(
        self,
        opaque: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: bytes,
        body: Buffer,
        oneway: bool = False,
    ) -> bytes: ...

def encode_batch(items: list[tuple[int, Buffer, bytes]]) -> bytes: ...

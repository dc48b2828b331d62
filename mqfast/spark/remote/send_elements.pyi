"""Types of send_elements.pyx; what each part does is described there."""

from collections.abc import Callable
from typing import final

from mqfast.message import Body

_Ready = tuple[bytes, int, bool, bytes, bytes, int, int, int, int, int, int, int, int]

@final
class Elements:
    def __init__(
        self,
        stamp: bytes,
        unique: bytes,
        division: Callable[[bytes], bytes],
        keeps_ids: bool,
        keeps_born: bool,
        most_bytes: int,
        most_count: int,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def pending(self) -> int: ...
    def add(self, block: Body, delayed: bool) -> list[_Ready]: ...
    def rest(self) -> list[_Ready]: ...
    def ends(self) -> list[tuple[bytes, int, int, int]]: ...

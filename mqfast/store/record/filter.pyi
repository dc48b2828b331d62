"""Types of filter.pyx."""

from collections.abc import Collection, Iterable
from typing import Final, Self, final

MAX_TAGS: Final[int]

class UnitFilter: ...

@final
class TagFilter(UnitFilter):
    def __init__(self, tags: Collection[str]) -> None: ...
    def has(self, tag: str | None) -> bool: ...
    def may_have(self, tags_code: int) -> bool: ...

@final
class TagCodes(UnitFilter):
    def __new__(cls, codes: Iterable[int]) -> Self: ...

def tag_filter(expression: str | None) -> TagFilter | None: ...

"""Types of staged.pyx."""

from collections.abc import Callable
from typing import Any

from mqfast.store.core import StoreBase

def property_texts(
    rows: list[dict[str, str]],
    orders: dict[tuple[str, ...], tuple[str, ...]],
    order_of: Callable[[tuple[str, ...]], tuple[str, ...]],
    slow: Callable[[int, dict[str, str]], bytes],
) -> list[bytes]: ...
def count_records(block: Any, max_record_bytes: int = 0x7FFFFFFF) -> tuple[int, int]: ...
def append_records(into: StoreBase, block: Any) -> int: ...

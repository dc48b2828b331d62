"""Types of record_columns.pyx."""

from typing import Final

COLUMNS: Final[tuple[str, ...]]

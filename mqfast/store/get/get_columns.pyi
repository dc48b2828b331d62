"""Types of get_columns.pyx."""

from typing import Final

FIXED_FIELDS: Final[tuple[tuple[str, str], ...]]

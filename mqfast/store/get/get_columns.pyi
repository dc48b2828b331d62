"""Types of _columns.pyx; what each part does is described there."""

from typing import Final

FIXED_FIELDS: Final[tuple[tuple[str, str], ...]]

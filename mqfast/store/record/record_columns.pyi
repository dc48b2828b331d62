"""Types of _columns.pyx; what each part does is described there."""

from typing import Final

COLUMNS: Final[tuple[str, ...]]

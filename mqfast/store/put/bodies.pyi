"""Types of bodies.pyx."""

from typing import final

@final
class Bodies: ...

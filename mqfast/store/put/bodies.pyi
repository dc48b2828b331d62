"""Types of bodies.pyx; what each part does is described there."""

from typing import final

@final
class Bodies: ...

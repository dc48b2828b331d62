"""Types of _queue_flush.pyx; what each part does is described there."""

from typing import final

from mqfast.store.base._os import Errand
from mqfast.store.queues._consume_queue import ConsumeQueue

@final
class QueueFlush(Errand):
    def finish(self) -> bool: ...
    def abandon(self) -> None: ...

def flush_queues(dirty: list[tuple[ConsumeQueue, int, bool]], device: int = -1) -> int: ...
def prepare_flush(dirty: list[tuple[ConsumeQueue, int, bool]]) -> QueueFlush | None: ...

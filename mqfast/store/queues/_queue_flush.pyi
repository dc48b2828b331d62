"""Types of _queue_flush.pyx; what each part does is described there."""

from mqfast.store.queues._consume_queue import ConsumeQueue

def flush_queues(dirty: list[tuple[ConsumeQueue, int, bool]], device: int = -1) -> int: ...

"""Types of queue_flush.pyx; the docstrings are there."""

from mqfast.store.queues.consume_queue import ConsumeQueue

def flush_queues(dirty: list[tuple[ConsumeQueue, int, bool]], device: int = -1) -> int: ...

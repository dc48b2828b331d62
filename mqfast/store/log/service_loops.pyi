"""Types of service_loops.pyx; the docstrings are there."""

from mqfast.store.base.event import Event
from mqfast.store.base.os_api import Mutex
from mqfast.store.log.commit_log import CommitLog
from mqfast.store.meta.checkpoint_file import CheckpointFile
from mqfast.store.queues.consume_queue import QueueTable

class FlushLoop:
    by_hand: bool
    many: int
    @property
    def flushing(self) -> Mutex: ...
    def __init__(
        self,
        log: CommitLog,
        interval: float,
        thorough_interval: float,
        least_pages: int,
        queues: QueueTable | None = None,
        checkpoint: CheckpointFile | None = None,
        queue_interval: float = ...,
        max_mapped_files: int = ...,
    ) -> None: ...
    def run(self, event: Event, seconds: float = ...) -> bool: ...
    def flush_queues(self) -> bool: ...
    def cover(self) -> tuple[int, int]: ...
    def see_synced(self, covered: tuple[int, int], left_page: bool) -> None: ...

def keep_committed(
    log: CommitLog, event: Event, interval: float, thorough_interval: float, least_pages: int
) -> None: ...
def keep_prefaulted(log: CommitLog, event: Event) -> None: ...
def wait_until_written(log: CommitLog, event: Event, end: int, seconds: float) -> None: ...

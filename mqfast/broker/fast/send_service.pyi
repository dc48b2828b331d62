"""Types of send_service.pyx."""

from mqfast.broker.fast.pull_table import PullTable
from mqfast.broker.fast.topic_table import TopicTable
from mqfast.remoting.reactor.reactor import Reactors, ReactorService
from mqfast.store.core import Core

class SendService(ReactorService):
    def __init__(
        self,
        reactors: Reactors,
        core: Core,
        table: TopicTable,
        pulls: PullTable,
        *,
        additions: bytes,
        id_prefix: str,
        store_host: bytes,
        json_pairs: bytes,
        binary_pairs: bytes,
        timeout_ms: int,
        slaves_fd: int,
    ) -> None: ...
    def open(self, is_open: bool, disk: bool, slaves: bool) -> None: ...
    def set_slaves(self, acked: int, reach: int, max_gap_bytes: int, timeout_ms: int) -> None: ...
    def slaves_woken(self) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...
    def take_latencies(self) -> list[tuple[int, int, list[int], int]]: ...
    def take_slow_puts(self) -> tuple[list[int], int]: ...
    @property
    def parked(self) -> int: ...
    @property
    def parked_full(self) -> int: ...

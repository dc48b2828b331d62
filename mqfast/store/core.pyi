"""Types of core.pyx."""

from collections.abc import Iterable

from mqfast.config import StoreConfig
from mqfast.store.dispatch.dispatch import CommitLogDispatcher
from mqfast.store.index.index_service import IndexService
from mqfast.store.log.acks import AckTable
from mqfast.store.log.commit_log import CommitLog
from mqfast.store.log.watermarks import FlushWaiters
from mqfast.store.put.put_result import Ticket
from mqfast.store.queues.consume_queue import ConsumeQueue, QueueTable
from mqfast.store.queues.queue_store import QueueStore

class Core:
    def __init__(
        self,
        log: CommitLog,
        table: QueueTable,
        dispatcher: CommitLogDispatcher,
        queues: QueueStore,
        index: IndexService | None,
        config: StoreConfig,
        waiters: FlushWaiters,
    ) -> None: ...
    @property
    def log(self) -> CommitLog: ...
    @property
    def table(self) -> QueueTable: ...
    @property
    def dispatcher(self) -> CommitLogDispatcher: ...
    @property
    def queues(self) -> QueueStore: ...
    @property
    def index(self) -> IndexService | None: ...
    @property
    def config(self) -> StoreConfig: ...
    @property
    def waiters(self) -> FlushWaiters: ...
    @property
    def put_count(self) -> int: ...
    def wait_for_slaves(self, acks: AckTable | None) -> None: ...
    def watch_ticket(self, ticket: Ticket) -> None: ...
    def mark_deleted(self, queues: Iterable[ConsumeQueue], deleted: bool = True) -> None: ...

class StoreBase:
    @property
    def engine(self) -> Core: ...
    @property
    def log(self) -> CommitLog: ...
    @property
    def put_count(self) -> int: ...

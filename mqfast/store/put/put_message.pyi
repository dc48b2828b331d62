"""Types of put_message.pyx."""

from collections.abc import Iterable
from typing import NoReturn, Unpack, final

from mqfast.message import Bodies, Body, Keys, Message, Properties, PutOptions
from mqfast.store.core import Core, StoreBase
from mqfast.store.put.put_result import BatchResult, PutResult, Ticket
from mqfast.store.queues.consume_queue import ConsumeQueue

class PutPath(StoreBase):
    def _bind(self, engine: Core) -> None: ...
    def forget_producers(self) -> None: ...
    def producer(self, topic: str, queue_id: int = 0, tags: str | None = None) -> BoundProducer: ...
    def put(
        self,
        topic: str,
        body: Body,
        queue_id: int = 0,
        tags: str | None = None,
        keys: Keys | None = None,
        properties: Properties | None = None,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | bytes | None = None,
        store_host: str | bytes | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        wait_store_ok: bool = True,
    ) -> PutResult: ...
    def put_message(self, message: Message) -> PutResult: ...
    def put_nowait(
        self,
        topic: str,
        body: Body,
        queue_id: int = 0,
        tags: str | None = None,
        keys: Keys | None = None,
        properties: Properties | None = None,
        **options: Unpack[PutOptions],
    ) -> Ticket: ...
    def put_many(self, topic: str, bodies: Bodies, queue_id: int = 0, tags: str | None = None) -> BatchResult: ...
    def put_batch(self, messages: Iterable[Message]) -> BatchResult: ...

@final
class BoundProducer:
    def __reduce__(self) -> NoReturn: ...
    def __init__(self, store: PutPath, topic: str, queue_id: int = 0, tags: str | None = None) -> None: ...
    @property
    def store(self) -> PutPath: ...
    @property
    def topic(self) -> str: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def queue(self) -> ConsumeQueue: ...
    @property
    def queue_id(self) -> int: ...
    def put(self, body: Body, key: str | None = None, /) -> PutResult: ...
    def message_of(self, body: Body) -> Message: ...
    def put_many(self, bodies: Bodies) -> BatchResult: ...

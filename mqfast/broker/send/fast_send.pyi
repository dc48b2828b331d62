"""Types of fast_send.pyx; what each part does is described there."""

from collections.abc import Callable
from typing import Any

from mqfast.remoting.command import RemotingCommand
from mqfast.store.put.put_result import PutResult

class SendTopic:
    def __init__(self, topic: str, queues: int, write_queues: int, sys_flag: int, is_plain: bool) -> None: ...
    @property
    def queues(self) -> int: ...
    @property
    def write_queues(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def is_plain(self) -> bool: ...

class SendPath:
    is_open: bool
    waits: bool
    waiting: dict[tuple[str, int], Any]
    notify: Callable[[tuple[str, int]], object] | None
    def __init__(
        self,
        put: Callable[..., PutResult],
        store_host: bytes,
        additions: bytes,
        id_prefix: str,
        answer_fields: dict[str, Any],
        count: Callable[[str, int, int], object],
    ) -> None: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def routes(self) -> dict[str, SendTopic]: ...
    @property
    def hosts(self) -> dict[Any, bytes]: ...
    def send(self, channel: object, request: RemotingCommand) -> RemotingCommand | None: ...

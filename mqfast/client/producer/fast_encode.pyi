"""Types of fast_encode.pyx; what each part does is described there."""

from collections.abc import Callable
from typing import Any

from mqfast.client.values import MessageQueue, SendResult, SendStatus
from mqfast.message import Message
from mqfast.remoting.command import Buffer, RemotingCommand
from mqfast.remoting.unique_ids import UniqueIds

class PreparedMessage:
    message: Message
    topic: str
    body: bytes
    properties: bytes
    msg_id: str
    sharding_key: str | None
    born_ms: int | None
    code: int
    flag: int
    sys_flag: int
    reconsume_times: int
    delayed: bool
    batch: bool
    def __init__(self, message: Message, topic: str, body: bytes, properties: bytes, msg_id: str) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def is_batchable(self) -> bool: ...
    @property
    def msg_ids(self) -> tuple[str, ...]: ...
    @msg_ids.setter
    def msg_ids(self, ids: tuple[str, ...]) -> None: ...

def plain(message: Message, ids: UniqueIds, topic: str, max_bytes: int) -> PreparedMessage | None: ...

class HeaderTemplate:
    queue: MessageQueue
    def __init__(self, code: int, fields: dict[str, Any], version: int, language: str) -> None: ...
    @property
    def fields(self) -> dict[str, Any]: ...
    @property
    def code(self) -> int: ...
    def frame(
        self,
        opaque: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: bytes,
        body: Buffer,
        oneway: bool = False,
    ) -> bytes: ...

class SendRequest:
    def __init__(
        self,
        address: str,
        head: HeaderTemplate,
        out: PreparedMessage,
        born_ms: int,
        timeout_s: float,
        oneway: bool = False,
        begun_s: float = 0.0,
    ) -> None: ...
    @property
    def address(self) -> str: ...
    @property
    def head(self) -> HeaderTemplate: ...
    @property
    def out(self) -> PreparedMessage: ...
    @property
    def born_ms(self) -> int: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def oneway(self) -> bool: ...
    @property
    def begun_s(self) -> float: ...
    @property
    def code(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def ext_fields(self) -> dict[str, Any]: ...
    def frame(self, opaque: int) -> bytes: ...
    def stored(self, answer: RemotingCommand | None) -> SendResult | None: ...

def result_of(status: SendStatus, answer: RemotingCommand, out: PreparedMessage, queue: MessageQueue) -> SendResult: ...
def results_of(result: SendResult, many: list[PreparedMessage]) -> list[SendResult]: ...

class FirstAttempt:
    def __init__(
        self,
        request: SendRequest,
        how: object,
        done: Callable[[SendResult | None, Exception | None], None],
        goes_on: Callable[[Any, RemotingCommand | None, Exception | None], None],
    ) -> None: ...
    @property
    def request(self) -> SendRequest: ...
    @property
    def how(self) -> Any: ...
    @property
    def on_done(self) -> Callable[[SendResult | None, Exception | None], None]: ...
    def done(self) -> bool: ...
    def set_result(self, answer: RemotingCommand) -> None: ...
    def set_exception(self, error: Exception) -> None: ...

def encode_batch(many: list[PreparedMessage]) -> bytes: ...

"""Request steps: requests of a client as a generator without I/O, which a driver runs.

Steps do no I/O and know no thread. The drivers: ``asyncio_driver.py`` in an event loop, ``connection_pool.py`` on the
caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from mqfast.errors import (
    BrokerBusy,
    BrokerError,
    CallTimeout,
    ClientError,
    ConnectionLost,
    CorruptFile,
    FieldError,
    NoRoute,
    Refused,
    RequestLost,
    RequestTimeout,
)
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import Buffer, RemotingCommand

__all__ = [
    "Blocking", "EncodedRequest", "Request", "RequestSteps", "Sleep", "broker_error", "checked", "of_client",
    "read_answer",
]  # fmt: skip


_ACL: Final = "acl.common.AclException"
"""In the remark of a broker with a file of accounts (ACL 1.0) that refuses a request; the code is 1 there."""


class Request(NamedTuple):
    """A request to an address; the driver sends the response in, whatever its code (None to a one-way request).

    A driver throws in: ConnectError (nothing was sent), RequestLost or RequestTimeout (the request may be done), which
    are also ConnectionLost and CallTimeout.
    """

    address: str
    code: int
    ext_fields: dict[str, Any] | None = None
    body: bytes | Sequence[Buffer] = b""
    timeout_s: float = 3.0
    oneway: bool = False


class EncodedRequest(Protocol):
    """A ``Request`` that encodes the frame itself, for the hot path; a driver that signs uses the fields."""

    @property
    def address(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def ext_fields(self) -> dict[str, Any]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def oneway(self) -> bool: ...
    def frame(self, opaque: int) -> bytes:
        """Return the frame of this request without a signature."""


class Sleep(NamedTuple):
    """Sleep so long; the driver sends None in."""

    seconds: float


class Blocking(NamedTuple):
    """Call a function that blocks: in a thread of the event loop, or in the caller's thread.

    The driver sends its result in, or throws its exception in.
    """

    function: Callable[[], Any]


_Result = TypeVar("_Result")
RequestSteps: TypeAlias = Generator[Request | EncodedRequest | Sleep | Blocking, Any, _Result]
"""A generator of steps that returns a result."""


def of_client(error: Exception) -> Exception:
    """Return the error of a connection as a ClientError, for users of clients."""
    if isinstance(error, ClientError):
        return error
    if isinstance(error, CallTimeout):
        return RequestTimeout(str(error))
    return RequestLost(str(error)) if isinstance(error, ConnectionLost) else error


def broker_error(answer: RemotingCommand, address: str, about: str = "", *, msg_id: str | None = None) -> BrokerError:
    """Return the error of a response's code. Args: about: the subject of the request, for example a topic."""
    code, remark = answer.code, answer.remark or ""
    text = f"{about + ': ' if about else ''}{address} answered code {code}" + (f" {remark!r}" if remark else "")
    kind = BrokerError
    if code == ResponseCode.SYSTEM_BUSY:
        kind = BrokerBusy
    elif code in (ResponseCode.NO_PERMISSION, ResponseCode.USER_NOT_EXIST) or _ACL in remark:
        kind = Refused
    return kind(text, code=code, remark=remark, broker=address, msg_id=msg_id)


def checked(answer: RemotingCommand, address: str, about: str = "", *also: int) -> RemotingCommand:
    """Return the response, if the code is 0 or in ``also``. Raises: NoRoute for code 17, else BrokerError or its
    kinds.
    """
    if answer.code == ResponseCode.SUCCESS or answer.code in also:
        return answer
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise NoRoute(f"{about + ': ' if about else ''}{address} answered code 17 {answer.remark or ''!r}")
    raise broker_error(answer, address, about)


def read_answer(answer: RemotingCommand, address: str, read: Callable[[bytes], _Result]) -> _Result:
    """Return the body of an answer as ``read`` decodes it. Raises: BrokerError for a body that cannot be decoded."""
    try:
        return read(bytes(answer.body or b""))
    except (FieldError, CorruptFile) as error:
        remark = f"the answer cannot be read: {error}"
        raise BrokerError(
            f"{address}: code {answer.code}, {remark}", code=answer.code, remark=remark, broker=address
        ) from None

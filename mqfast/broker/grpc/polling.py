"""The waits of ReceiveMessage and PullMessage: until the deadline of a call, and for clients that read.

Nothing here keeps a state.
"""

from __future__ import annotations

from typing import Final

from mqfast.broker.grpc.codes import Code, Refused
from mqfast.grpc.connection import Call

__all__ = ["check_reads", "wait_ms"]

_WAIT_MS_MAX: Final = 20_000
_BEFORE_THE_DEADLINE_S: Final = 0.3
_UNSENT_MAX: Final = 32 << 20


def wait_ms(call: Call, now_s: float, wanted_ms: int) -> int:
    """Return how long a call waits for messages: as asked, and so that the answer comes before the deadline.

    Args: now_s: by the clock of the loop.
    """
    if call.deadline_s is not None:
        wanted_ms = min(wanted_ms, int((call.deadline_s - now_s - _BEFORE_THE_DEADLINE_S) * 1000))
    return max(0, min(wanted_ms, _WAIT_MS_MAX))


def check_reads(call: Call) -> None:
    """Check that the client reads answers; to be called before a wait and after. Raises: Refused."""
    if call.unsent_bytes > _UNSENT_MAX:
        raise Refused(Code.TOO_MANY_REQUESTS, f"expected a client that reads, found {call.unsent_bytes} bytes waiting")

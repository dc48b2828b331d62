"""Compilation of SQL92 expressions beside the event loop: the largest expression takes a third of a second.

Of one connection, the expressions of a single request are compiled at a time. In the loop at most a few ms of text are
compiled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from mqfast.broker.filter.sql92_parser import SqlError, compile_sql, uncompiled
from mqfast.errors import CallRefused
from mqfast.remoting.codes import ResponseCode

__all__ = ["AT_ONCE_CHARS", "REQUEST_CHARS_MAX", "Compiling"]

AT_ONCE_CHARS: Final = 256
"""Limit of characters of new expressions of a request for compilation in the loop."""
REQUEST_CHARS_MAX: Final = 256 * 1024
_WAITING_MAX: Final = 1000

T = TypeVar("T")


class Compiling:
    """A thread that compiles the expressions of requests. Thread: that of the event loop."""

    def __init__(self) -> None:
        self._executor: Final = ThreadPoolExecutor(1, "mqfast sql")
        self._of: dict[
            Hashable, tuple[list[str], asyncio.Future[None]]
        ] = {}  # connection -> (expressions, end of compilation)

    @staticmethod
    def takes_long(texts: Sequence[str]) -> bool:
        """Return True if there is more to compile than the loop may."""
        return sum(map(len, uncompiled(texts))) > AT_ONCE_CHARS

    def then(self, channel: Hashable, texts: Sequence[str], serve: Callable[[], T | Awaitable[T]]) -> T | Awaitable[T]:
        """Serve a request after the compilation of its expressions; at once for short expressions.

        Raises: CallRefused for more text than a request may have, or while other expressions of the connection are
            compiled.
        """
        new = uncompiled(texts)
        chars = sum(map(len, new))
        if chars <= AT_ONCE_CHARS:
            return serve()
        if chars > REQUEST_CHARS_MAX:
            remark = f"SQL92: expected at most {REQUEST_CHARS_MAX} characters in a request, found {chars}"
            raise CallRefused(ResponseCode.SYSTEM_ERROR, remark)
        before = self._of.get(channel)
        if before is None and len(self._of) < _WAITING_MAX:
            loop = asyncio.get_running_loop()
            before = self._of[channel] = new, loop.run_in_executor(self._executor, _compile, new)
            before[1].add_done_callback(lambda _: self._of.pop(channel, None))
        elif before is None or not set(new) <= set(before[0]):
            remark = "[OVERLOAD]system busy, expressions are compiled, one request of a connection at a time"
            raise CallRefused(ResponseCode.SYSTEM_BUSY, remark)
        return self._later(before[1], serve)

    @staticmethod
    async def _later(compiled: asyncio.Future[None], serve: Callable[[], T | Awaitable[T]]) -> T:
        await asyncio.wait([compiled])
        outcome = serve()
        return await outcome if isinstance(outcome, Awaitable) else outcome

    def close(self) -> None:
        """Stop compiling."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _compile(texts: Sequence[str]) -> None:
    for text in texts:
        with contextlib.suppress(SqlError):  # the error is cached for the handler of the request
            compile_sql(text)

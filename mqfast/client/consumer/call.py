"""A single declaration of a call for the sync and the asyncio consumer: a method that returns ``Work`` becomes both.

``call`` of ``client/admin/call.py`` does the same for calls that are request steps.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar, overload

__all__ = ["CALL_S", "AsyncCalls", "SyncCalls", "Work", "engine_call"]

P = ParamSpec("P")
T = TypeVar("T")
CALL_S: Final = 20.0


class Work(NamedTuple, Generic[T]):
    """A coroutine of an engine; ``timeout_s``: the limit of a sync call."""

    coroutine: Coroutine[Any, Any, T]
    timeout_s: float = CALL_S


class SyncCalls(ABC):
    """A consumer whose calls block until the result is there."""

    @abstractmethod
    def _run(self, work: Work[T]) -> T:
        """Run the coroutine in the event loop of the sync clients and wait for the result."""


class AsyncCalls(ABC):
    """A consumer whose calls are coroutines."""

    @abstractmethod
    async def _run(self, work: Work[T]) -> T:
        """Run the coroutine in the running event loop."""


class engine_call(Generic[P, T]):
    """A method that checks the arguments and returns ``Work``: blocking in a sync consumer, a coroutine in an asyncio
    consumer.

    Both have name, signature and docstring of the method.
    """

    def __init__(self, function: Callable[Concatenate[Any, P], Work[T]]) -> None:
        self.__doc__ = function.__doc__

        @functools.wraps(function)
        def blocking(self: SyncCalls, *args: Any, **kwargs: Any) -> Any:
            return self._run(function(self, *args, **kwargs))

        @functools.wraps(function)
        async def coroutine(self: AsyncCalls, *args: Any, **kwargs: Any) -> Any:
            return await self._run(function(self, *args, **kwargs))

        result = str(function.__annotations__["return"]).removeprefix("Work[").removesuffix("]")
        signature = inspect.signature(function).replace(return_annotation=result)
        for made in (blocking, coroutine):
            made.__annotations__ = {**function.__annotations__, "return": result}
            vars(made)["__signature__"] = signature
        self._blocking: Final[Callable[..., Any]] = blocking
        self._coroutine: Final[Callable[..., Any]] = coroutine

    @overload
    def __get__(self, consumer: SyncCalls, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, consumer: AsyncCalls, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, consumer: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    def __get__(self, consumer: object, owner: type) -> Any:
        function = self._coroutine if issubclass(owner, AsyncCalls) else self._blocking
        return function if consumer is None else MethodType(function, consumer)

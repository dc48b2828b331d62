"""Calls of both admin clients: a method written as request steps becomes a blocking method and a coroutine.

``@call`` is for calls with a single result. ``@paged`` is for calls whose result is an iterator: the function returns
an iterator of steps for each page.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from mqfast.client.net.request_steps import RequestSteps

__all__ = ["AsyncFace", "SyncFace", "call", "paged"]

P = ParamSpec("P")
T = TypeVar("T")


class SyncFace(ABC):
    """A client whose methods block until the response."""

    @abstractmethod
    def _run(self, steps: RequestSteps[T]) -> T:
        """Run steps on the caller's thread."""


class AsyncFace(ABC):
    """A client whose methods are coroutines."""

    @abstractmethod
    async def _run(self, steps: RequestSteps[T]) -> T:
        """Run steps in the running loop."""


class _OfBothFaces(Generic[P]):
    """The base of both decorators: a function for each client, with name, signature and docstring of the steps."""

    _results = ("{}", "{}")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.steps = function
        self.__doc__ = function.__doc__
        result = _of_steps(function)
        self._sync = _like(function, self._sync_function(), self._results[0].format(result))
        self._async = _like(function, self._async_function(), self._results[1].format(result))

    def _sync_function(self) -> Callable[..., Any]:
        raise NotImplementedError

    def _async_function(self) -> Callable[..., Any]:
        raise NotImplementedError

    def _bound(self, face: object, owner: type) -> Any:
        function = self._async if issubclass(owner, AsyncFace) else self._sync
        return function if face is None else function.__get__(face, owner)


class call(_OfBothFaces[P], Generic[P, T]):
    """A method written as steps with a single result."""

    def __init__(self, function: Callable[Concatenate[Any, P], RequestSteps[T]]) -> None:
        super().__init__(function)

    @overload
    def __get__(self, face: SyncFace, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, face: AsyncFace, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, face: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    def __get__(self, face: object, owner: type) -> Any:
        return self._bound(face, owner)

    def _sync_function(self) -> Callable[..., Any]:
        steps = self.steps

        def ordinary(self: SyncFace, *args: Any, **kwargs: Any) -> Any:
            return self._run(steps(self, *args, **kwargs))

        return ordinary

    def _async_function(self) -> Callable[..., Any]:
        steps = self.steps

        async def coroutine(self: AsyncFace, *args: Any, **kwargs: Any) -> Any:
            return await self._run(steps(self, *args, **kwargs))

        return coroutine


class paged(_OfBothFaces[P], Generic[P, T]):
    """A method whose function checks the arguments and returns an iterator of steps, each for a page of results."""

    _results = ("Iterator[{}]", "AsyncIterator[{}]")

    def __init__(self, function: Callable[Concatenate[Any, P], Iterator[RequestSteps[Sequence[T]]]]) -> None:
        super().__init__(function)

    @overload
    def __get__(self, face: SyncFace, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, face: AsyncFace, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, face: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    def __get__(self, face: object, owner: type) -> Any:
        return self._bound(face, owner)

    def _sync_function(self) -> Callable[..., Any]:
        pages = self.steps

        def ordinary(self: SyncFace, *args: Any, **kwargs: Any) -> Iterator[Any]:
            return _items(self, pages(self, *args, **kwargs))

        return ordinary

    def _async_function(self) -> Callable[..., Any]:
        pages = self.steps

        def ordinary(self: AsyncFace, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            return _async_items(self, pages(self, *args, **kwargs))

        return ordinary


def _items(face: SyncFace, pages: Iterator[RequestSteps[Sequence[T]]]) -> Iterator[T]:
    for page in pages:
        yield from face._run(page)


async def _async_items(face: AsyncFace, pages: Iterator[RequestSteps[Sequence[T]]]) -> AsyncIterator[T]:
    for page in pages:
        for item in await face._run(page):
            yield item


def _like(function: Callable[..., Any], made: Any, result: str) -> Callable[..., Any]:
    """Return ``made`` with the metadata of ``function`` except the result: for help, completion and tracebacks."""
    functools.update_wrapper(made, function)
    del made.__wrapped__
    signature = inspect.signature(function)
    made.__signature__ = signature.replace(return_annotation=result)
    made.__annotations__ = {**function.__annotations__, "return": result}
    return cast("Callable[..., Any]", made)


def _of_steps(function: Callable[..., Any]) -> str:
    """Return the text of X in ``RequestSteps[X]`` or ``Iterator[RequestSteps[Sequence[X]]]``."""
    text = str(function.__annotations__["return"])
    for wrapping in ("Iterator[", "RequestSteps[", "Sequence[") if text.startswith("Iterator[") else ("RequestSteps[",):
        text = text.removeprefix(wrapping).removesuffix("]")
    return text

"""Who runs handlers: threads, an executor of the user's, or tasks of the event loop.

Room: client. Nothing that a handler raises may end a worker. A handler runs once for each job that it is given.
Source: ConsumeMessageConcurrentlyService.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, Final

from mqfast.client.consumer.push.state import Assigned, Handler, Job
from mqfast.client.consumer.push.wakeup_queue import WakeupQueue
from mqfast.client.net.guard import Guard

if TYPE_CHECKING:
    from mqfast.client.consumer.push.consume_service import ConsumeService

__all__ = ["ExecutorWorkers", "TaskWorkers", "ThreadWorkers"]

_log = logging.getLogger("mqfast.client.consumer")
IDLE_S: Final = 60.0
"""A thread without work ends after so long."""
_NOTHING: BaseException | None = None
REFUSED_S: Final = 1.0
"""How long messages wait whose executor took no work."""
BLOCKED_S: Final = 1.0
WATCH_S: Final = 0.5
_TURN: Final = 32  # jobs of a task until others of the loop have their turn


class ThreadWorkers(WakeupQueue[Assigned]):
    """Up to ``most`` daemon threads, started when they are needed."""

    def __init__(self, handling: ConsumeService, most: int, name: str) -> None:
        super().__init__()
        self._handling = handling
        self._most = most
        self._name = name
        self._threads: set[threading.Thread] = set()
        self._grow = Guard()
        self._running: dict[threading.Thread, Job | None] = {}

    def offer(self, assigned: Assigned) -> None:
        """A queue has a message."""
        self.put(assigned)

    def _lacks_threads(self) -> None:
        with self._grow:
            if self.closed or len(self._threads) >= self._most:
                return
            self._waking = True
            number = len(self._threads) + 1
            thread = threading.Thread(target=self._main, name=f"mqfast-{self._name}-{number}", daemon=True)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._waking = False
            with self._grow:
                self._threads.discard(thread)
            _log.warning("group %s: no further thread for handlers: %s", self._name, error)

    def _main(self) -> None:
        thread = threading.current_thread()
        lock = threading.Lock()
        lock.acquire()
        self._waking = False
        handling, running = self._handling, self._running
        while True:
            assigned = self.get(lock, IDLE_S)
            if assigned is None:
                with self._grow:
                    if self.closed or not self._items:
                        self._threads.discard(thread)
                        running.pop(thread, None)
                        return
                continue
            if self.closed:
                continue
            try:
                job = handling.begin(assigned)
            except Exception:
                _log.exception("group %s: a message could not be handed out", self._name)
                continue
            if job is None or job.handler is None:
                continue
            running[thread] = job
            result, error = None, _NOTHING
            try:
                result = job.handler.function(job.handler.argument(job.messages))
            except BaseException as raised:
                error = raised
            try:
                handling.end(job, result, error)
            except Exception:
                _log.exception("group %s: the end of a handler could not be noted", self._name)
            running[thread] = job = result = error = None
            del job, result, error

    @property
    def busy(self) -> int:
        """Handlers that run now."""
        return sum(job is not None for job in list(self._running.values()))

    @property
    def is_current(self) -> bool:
        """Is the caller one of these threads?"""
        return threading.current_thread() in self._threads

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Call a handler once, in a thread of its own. Raises: what it raises."""
        return await asyncio.to_thread(handler.function, argument)

    def stop(self) -> None:
        """Begin no handler any more."""
        self.clear()
        self.close()

    async def end(self, *, cancel: bool) -> None:
        """Threads end by themselves; one whose handler does not return is a daemon."""


def _call(function: Callable[..., Any], argument: Any) -> Any:
    """In the executor's thread or process."""
    return function(argument)


class ExecutorWorkers:
    """An executor of the user's. At most ``most`` jobs are with it; messages travel as plain copies.

    Thread: ``offer``: any.
    """

    def __init__(self, handling: ConsumeService, executor: Executor, most: int, name: str) -> None:
        self._handling = handling
        self._executor = executor
        self._most = most
        self._name = name
        self._items: deque[Assigned] = deque()
        self._lock = Guard()
        self._out: dict[Future[Any], Job] = {}
        self._reserved = 0
        self._closed = False

    def offer(self, assigned: Assigned) -> None:
        """A queue has a message."""
        self._items.append(assigned)
        self._submit()

    def _submit(self) -> None:
        while self._items:
            with self._lock:
                if self._closed or self._reserved >= self._most:
                    return
                self._reserved += 1
            job = self._next()
            if job is None:
                with self._lock:
                    self._reserved -= 1
                continue
            assert job.handler is not None
            try:
                future = self._executor.submit(_call, job.handler.function, job.handler.argument(job.messages))
            except Exception as error:  # shut down, or its processes are gone: no message is to blame
                with self._lock:
                    self._reserved -= 1
                self._handling.refusal = f"the executor takes no work: {error!r}"
                _log.error("group %s: %s; messages wait", self._name, self._handling.refusal)
                self._handling.leave(job, after_s=REFUSED_S)
                continue
            self._handling.refusal = ""
            self._out[future] = job
            future.add_done_callback(self._done)

    def _next(self) -> Job | None:
        try:
            assigned = self._items.popleft()
        except IndexError:
            return None
        try:
            job = self._handling.begin(assigned)
        except Exception:
            _log.exception("group %s: a message could not be handed out", self._name)
            return None
        return job if job is not None and job.handler is not None else None

    def _done(self, future: Future[Any]) -> None:
        job = self._out.pop(future)
        with self._lock:
            self._reserved -= 1
        if future.cancelled():
            self._handling.leave(job)
        else:
            error = future.exception()
            self._handling.end(job, None if error else future.result(), error)
        self._submit()

    @property
    def busy(self) -> int:
        """Jobs that the executor has."""
        return len(self._out)

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Call a handler once, in the executor. Raises: what it raises."""
        return await asyncio.wrap_future(self._executor.submit(_call, handler.function, argument))

    def stop(self) -> None:
        """Begin no handler any more."""
        self._closed = True
        self._items.clear()

    async def end(self, *, cancel: bool) -> None:
        """The executor is the user's and stays. Args: cancel: jobs that it has not begun."""
        if cancel:
            for future in list(self._out):
                future.cancel()


class TaskWorkers:
    """Up to ``most`` tasks of the loop. A function that is no coroutine function runs in the loop itself.

    Thread: that of the loop.
    """

    def __init__(self, handling: ConsumeService, loop: asyncio.AbstractEventLoop, most: int, name: str) -> None:
        self._handling = handling
        self._loop = loop
        self._most = most
        self._name = name
        self._items: deque[Assigned] = deque()
        self._tasks: dict[asyncio.Task[None], Job | None] = {}
        self._has_spare = False
        self._closed = False
        self._last: Job | None = None
        self._watch()

    def _watch(self, due_s: float = 0.0) -> None:
        """Name the handler after which the loop stood still: other tasks, heartbeats among them, had to wait."""
        late_s = self._loop.time() - due_s if due_s else 0.0
        if late_s > BLOCKED_S and self._last is not None and self._last.handler is not None:
            _log.warning(
                "group %s: the event loop stood still for %.1f s, last with handler %s: it should await",
                self._name, late_s, self._last.handler.name,
            )  # fmt: skip
        if not self._closed:
            self._loop.call_later(WATCH_S, self._watch, self._loop.time() + WATCH_S)

    def offer(self, assigned: Assigned) -> None:
        """A queue has a message."""
        self._items.append(assigned)
        self._spawn()

    def _spawn(self) -> None:
        if self._has_spare or self._closed or len(self._tasks) >= self._most:
            return
        self._has_spare = True
        task = self._loop.create_task(self._main(), name=f"mqfast {self._name} handler")
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if self._items:
            self._spawn()

    async def _main(self) -> None:
        self._has_spare = False
        me = asyncio.current_task()
        assert me is not None
        items, handling, turn = self._items, self._handling, 0
        while items and not self._closed:
            turn += 1
            if turn % _TURN == 0:
                await asyncio.sleep(0)
                continue
            assigned = items.popleft()
            if items and not self._has_spare:
                self._spawn()
            job = handling.begin(assigned)
            if job is None or job.handler is None:
                continue
            self._tasks[me] = self._last = job
            result, error = None, _NOTHING
            try:
                result = job.handler.function(job.handler.argument(job.messages))
                if inspect.isawaitable(result):
                    result = await result
            except (asyncio.CancelledError, KeyboardInterrupt) as raised:
                if me.cancelling() or isinstance(raised, KeyboardInterrupt):
                    handling.leave(job)
                    raise
                error = raised
            except (Exception, SystemExit) as raised:
                error = raised
            self._tasks[me] = None
            handling.end(job, result, error)

    @property
    def busy(self) -> int:
        """Handlers that run now."""
        return sum(job is not None for job in self._tasks.values())

    @property
    def is_current(self) -> bool:
        """Is the caller one of these tasks?"""
        return asyncio.current_task() in self._tasks

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Call a handler once. Raises: what it raises."""
        result = handler.function(argument)
        return await result if inspect.isawaitable(result) else result

    def stop(self) -> None:
        """Begin no handler any more."""
        self._closed = True
        self._items.clear()

    async def end(self, *, cancel: bool) -> None:
        """Args: cancel: handlers that still run are cancelled; their messages come again."""
        me = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not me]
        if cancel and tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)

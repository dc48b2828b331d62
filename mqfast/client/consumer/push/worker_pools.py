"""The workers that run handlers: threads, an executor of the user, or tasks of the event loop.

No exception of a handler ends a worker. A handler runs once per job.
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
from typing import Any, Final

from mqfast.client.consumer.push.dispatcher import Dispatcher
from mqfast.client.consumer.push.state import Assigned, Handler, Job
from mqfast.client.consumer.push.wakeup_queue import WakeupQueue
from mqfast.client.net.guard import Guard

__all__ = ["ExecutorWorkers", "TaskWorkers", "ThreadWorkers"]

_log = logging.getLogger("mqfast.client.consumer")
IDLE_S: Final = 60.0
"""An idle thread ends after this time."""
_NOTHING: BaseException | None = None
REFUSED_S: Final = 1.0
"""Pause before messages are offered again to an executor that refused work."""
BLOCKED_S: Final = 1.0
WATCH_S: Final = 0.5
_TURN: Final = 32  # jobs of a task until the task yields to the loop


class ThreadWorkers(WakeupQueue[Assigned]):
    """Up to ``threads`` daemon threads, started on demand."""

    def __init__(self, dispatcher: Dispatcher, threads: int, name: str) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self._threads_max = threads
        self._name = name
        self._threads: set[threading.Thread] = set()
        self._grow = Guard()
        self._running: dict[threading.Thread, Job | None] = {}

    def offer(self, assigned: Assigned) -> None:
        """Add a queue with a waiting message."""
        self.put(assigned)

    def _lacks_threads(self) -> None:
        with self._grow:
            if self.closed or len(self._threads) >= self._threads_max:
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
        dispatcher, running = self._dispatcher, self._running
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
                job = dispatcher.begin(assigned)
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
                dispatcher.process_result(job, result, error)
            except Exception:
                _log.exception("group %s: the end of a handler could not be noted", self._name)
            running[thread] = job = result = error = None
            del job, result, error

    @property
    def busy(self) -> int:
        """Return the number of running handlers."""
        return sum(job is not None for job in list(self._running.values()))

    @property
    def is_current(self) -> bool:
        """Return whether the caller is a thread of this pool."""
        return threading.current_thread() in self._threads

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Call a handler once, in another thread. Raises: the exception of the handler."""
        return await asyncio.to_thread(handler.function, argument)

    def stop(self) -> None:
        """Begin no further handler."""
        self.clear()
        self.close()

    async def shutdown(self, *, cancel: bool) -> None:
        """Return at once: idle threads end on their own, and running threads are daemons."""


def _call(function: Callable[..., Any], argument: Any) -> Any:
    """Call the handler in a thread or process of the executor."""
    return function(argument)


class ExecutorWorkers:
    """An executor of the user, with at most ``jobs`` jobs at a time; messages are passed as plain copies.

    Thread: ``offer``: any.
    """

    def __init__(self, dispatcher: Dispatcher, executor: Executor, jobs: int, name: str) -> None:
        self._dispatcher = dispatcher
        self._executor = executor
        self._jobs_max = jobs
        self._name = name
        self._items: deque[Assigned] = deque()
        self._lock = Guard()
        self._out: dict[Future[Any], Job] = {}
        self._reserved = 0
        self._closed = False

    def offer(self, assigned: Assigned) -> None:
        """Add a queue with a waiting message."""
        self._items.append(assigned)
        self._submit()

    def _submit(self) -> None:
        while self._items:
            with self._lock:
                if self._closed or self._reserved >= self._jobs_max:
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
            except (
                Exception
            ) as error:  # the executor was shut down, or its processes have died: not an error of a message
                with self._lock:
                    self._reserved -= 1
                self._dispatcher.refusal = f"the executor takes no work: {error!r}"
                _log.error("group %s: %s; messages wait", self._name, self._dispatcher.refusal)
                self._dispatcher.release(job, after_s=REFUSED_S)
                continue
            self._dispatcher.refusal = ""
            self._out[future] = job
            future.add_done_callback(self._done)

    def _next(self) -> Job | None:
        try:
            assigned = self._items.popleft()
        except IndexError:
            return None
        try:
            job = self._dispatcher.begin(assigned)
        except Exception:
            _log.exception("group %s: a message could not be handed out", self._name)
            return None
        return job if job is not None and job.handler is not None else None

    def _done(self, future: Future[Any]) -> None:
        job = self._out.pop(future)
        with self._lock:
            self._reserved -= 1
        if future.cancelled():
            self._dispatcher.release(job)
        else:
            error = future.exception()
            self._dispatcher.process_result(job, None if error else future.result(), error)
        self._submit()

    @property
    def busy(self) -> int:
        """Return the number of jobs in the executor."""
        return len(self._out)

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Call a handler once, in the executor. Raises: the exception of the handler."""
        return await asyncio.wrap_future(self._executor.submit(_call, handler.function, argument))

    def stop(self) -> None:
        """Begin no further handler."""
        self._closed = True
        self._items.clear()

    async def shutdown(self, *, cancel: bool) -> None:
        """Keep the executor, which belongs to the user. Args: cancel: cancel jobs that have not begun."""
        if cancel:
            for future in list(self._out):
                future.cancel()


class TaskWorkers:
    """Up to ``tasks`` tasks of the loop. A function that is no coroutine function runs in the loop itself.

    Thread: that of the loop.
    """

    def __init__(self, dispatcher: Dispatcher, tasks: int, name: str) -> None:
        self._dispatcher = dispatcher
        self._loop = dispatcher.loop
        self._tasks_max = tasks
        self._name = name
        self._items: deque[Assigned] = deque()
        self._tasks: dict[asyncio.Task[None], Job | None] = {}
        self._has_spare = False
        self._closed = False
        self._last: Job | None = None
        self._watch()

    def _watch(self, due_s: float = 0.0) -> None:
        """Log the handler that blocked the loop: other tasks, also heartbeats, had to wait."""
        late_s = self._loop.time() - due_s if due_s else 0.0
        if late_s > BLOCKED_S and self._last is not None and self._last.handler is not None:
            _log.warning(
                "group %s: the event loop stood still for %.1f s, last with handler %s: it should await",
                self._name, late_s, self._last.handler.name,
            )  # fmt: skip
        if not self._closed:
            self._loop.call_later(WATCH_S, self._watch, self._loop.time() + WATCH_S)

    def offer(self, assigned: Assigned) -> None:
        """Add a queue with a waiting message."""
        self._items.append(assigned)
        self._spawn()

    def _spawn(self) -> None:
        if self._has_spare or self._closed or len(self._tasks) >= self._tasks_max:
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
        items, dispatcher, turn = self._items, self._dispatcher, 0
        while items and not self._closed:
            turn += 1
            if turn % _TURN == 0:
                await asyncio.sleep(0)
                continue
            assigned = items.popleft()
            if items and not self._has_spare:
                self._spawn()
            job = dispatcher.begin(assigned)
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
                    dispatcher.release(job)
                    raise
                error = raised
            except (Exception, SystemExit) as raised:
                error = raised
            self._tasks[me] = None
            dispatcher.process_result(job, result, error)

    @property
    def busy(self) -> int:
        """Return the number of running handlers."""
        return sum(job is not None for job in self._tasks.values())

    @property
    def is_current(self) -> bool:
        """Return whether the caller is a task of this pool."""
        return asyncio.current_task() in self._tasks

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Call a handler once. Raises: the exception of the handler."""
        result = handler.function(argument)
        return await result if inspect.isawaitable(result) else result

    def stop(self) -> None:
        """Begin no further handler."""
        self._closed = True
        self._items.clear()

    async def shutdown(self, *, cancel: bool) -> None:
        """End the tasks. Args: cancel: cancel running handlers; their messages are delivered again."""
        me = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not me]
        if cancel and tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)

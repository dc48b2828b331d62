"""The engine of push consumers: owns, starts and closes the parts. The parts share ``ConsumerState``.

The sync and the asyncio consumer have the same engine; in a sync consumer the engine runs in the loop of the thread
"mqfast-io". Source: DefaultMQPushConsumerImpl.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from mqfast.client.consumer.allocation import Allocation
from mqfast.client.consumer.loop_calls import call_in_loop
from mqfast.client.consumer.offsets import OffsetStore, offsets_of
from mqfast.client.consumer.push.coordinator import Coordinator
from mqfast.client.consumer.push.diagnostics import LOOK_S, Diagnostics
from mqfast.client.consumer.push.dispatcher import Dispatcher, Workers
from mqfast.client.consumer.push.fetcher import Fetcher
from mqfast.client.consumer.push.locks import RENEW_S
from mqfast.client.consumer.push.remote_requests import RemoteRequests
from mqfast.client.consumer.push.settings import PushSettings
from mqfast.client.consumer.push.state import ConsumerState, TopicSubscription
from mqfast.client.delivery import DeliveryOwner
from mqfast.client.hooks import ClientHook
from mqfast.client.net.instance import ClientInstance
from mqfast.client.producer.trace import Tracer
from mqfast.errors import MqfastError

__all__ = ["PushEngine"]

_log = logging.getLogger("mqfast.client.consumer")
REBALANCE_S: Final = 20.0
COMMIT_S: Final = 5.0
_LAST_COMMIT_S: Final = 1.0
"""The part of the close timeout that is reserved for the last commit."""
_DRAIN_STEP_S: Final = 0.005


class PushEngine:
    """A push consumer.

    Args:
        wanted: topic on the wire -> subscription.
        make_workers: creates the workers for the dispatcher.
        own_offsets: the offset store of the user.
        owner: of the deliveries, for ``ack`` and ``retry`` of a loop.
        tracer: is closed with the engine.
    Attributes: instance, state, and the parts: coordinator, fetcher, dispatcher, diagnostics; ``has_joined``: handlers
        may run, although ``start`` may still wait.
    Thread: that of the loop, except ``call_soon``.
    """

    def __init__(
        self,
        settings: PushSettings,
        instance: ClientInstance,
        wanted: Mapping[str, TopicSubscription],
        allocation: Allocation,
        make_workers: Callable[[Dispatcher], Workers],
        *,
        own_offsets: OffsetStore | None = None,
        hooks: Sequence[ClientHook] = (),
        owner: DeliveryOwner | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.instance: Final = instance
        self.state: Final = ConsumerState(settings, instance.settings.namespace or "", wanted)
        state, hooks = self.state, tuple(hooks)
        offsets = offsets_of(instance, state.group, broadcasting=settings.is_broadcasting, own=own_offsets)
        self.dispatcher: Final = Dispatcher(state, instance, make_workers, hooks)
        self.fetcher: Final = Fetcher(
            state, instance, offsets, self.dispatcher.offer,
            commits_by_pull=state.is_clustering and own_offsets is None, stamps_arrival=bool(hooks),
        )  # fmt: skip
        self.coordinator: Final = Coordinator(state, instance, offsets, allocation, self.fetcher, owner)
        self.diagnostics: Final = Diagnostics(state, instance, self.dispatcher)
        self._requests: Final = RemoteRequests(state, instance, self.coordinator, self.fetcher, self.dispatcher)
        self._settings: Final = settings
        self._tracer: Final = tracer
        self._periodic: list[asyncio.Task[None]] = []
        self.has_joined = False

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop; do nothing once the loop has ended. Thread: any."""
        call_in_loop(self.instance.loop, function)

    # --- start ---

    async def start(self) -> None:
        """Join the group and begin to pull.

        Raises: ConnectError when no name server answers, SubscriptionError for SQL that a broker refuses, ClientError.
        """
        state, instance = self.state, self.instance
        instance.add_consumer(state.group, self.coordinator)
        await instance.acquire(may_wait=self._settings.start_timeout_s != 0)
        try:
            since_ms = await instance.begin_with_name_server(
                self._settings.start_timeout_s, lambda: state.is_closing, self.coordinator.find_topics
            )
            if not state.is_closing:  # close() would not undo what is begun from here on
                self._requests.register()
                self.has_joined = True
                await self.coordinator.join(since_ms)
        except BaseException:
            await self.close(0.0)
            raise
        if not state.is_closing:  # by a handler or another thread, meanwhile
            self._begin_periodic_work()

    def _begin_periodic_work(self) -> None:
        self._every(REBALANCE_S, self.coordinator.rebalance, "rebalance")
        self._every(COMMIT_S, self.coordinator.commit, "offsets")
        self._every(min(60.0, max(0.1, self._settings.consume_timeout_s / 4)), self.dispatcher.expire, "timeouts")
        self._every(LOOK_S, self.diagnostics.warn_once, "why nothing comes")
        if self.state.needs_locks:
            self._every(RENEW_S, self.coordinator.locks.renew, "locks")

    def _every(self, seconds: float, work: Callable[[], Awaitable[object]], name: str) -> None:
        self._periodic.append(self.instance.every(seconds, work, f"{self.state.group} {name}"))

    # --- close ---

    async def close(self, timeout_s: float | None = None) -> int:
        """Leave the group: wait for running handlers, commit the offsets, release the locks.

        Returns: the number of messages whose handlers did not end in time, which are delivered again.
        """
        if self.state.is_closing:
            return 0
        self.state.is_closing = True
        deadline = time.monotonic() + (self._settings.close_timeout_s if timeout_s is None else timeout_s)
        self._stop()
        try:  # an interrupted caller skips the waits; the rest is done in any case
            await self._drain(deadline)
        finally:
            mine = self.coordinator.drop_all()
            running = sum(bool(message.begun_s) for assigned in mine for message in assigned.pq.open_messages())
            if running:
                _log.warning(
                    "group %s: %d messages have handlers that did not end in time: they come again",
                    self.state.group, running,
                )  # fmt: skip
            await self._leave_group(max(_LAST_COMMIT_S, deadline - time.monotonic()))
        return running

    def _stop(self) -> None:
        """Begin no handler and no periodic work from now on."""
        self._requests.unregister()
        self.coordinator.stop()
        self.dispatcher.workers.stop()
        for task in self._periodic:
            task.cancel()

    async def _drain(self, deadline: float) -> None:
        """Wait until no handler runs and no message is sent back, at the latest until the reserve of the commit."""
        loop = self.instance.loop
        await self.coordinator.wait_for_rebalance(loop.time() + deadline - time.monotonic())
        await self._run_scheduled_results()
        self.coordinator.drop_all()
        is_busy = True
        while is_busy and time.monotonic() < deadline - _LAST_COMMIT_S:
            is_busy = self._is_busy()
            if is_busy:
                await asyncio.sleep(_DRAIN_STEP_S)
            else:
                await self._run_scheduled_results()
            is_busy = is_busy or self._is_busy()

    @staticmethod
    async def _run_scheduled_results() -> None:
        """Let the loop process results of handlers that are scheduled: a dropped queue accepts none."""
        await asyncio.sleep(0)

    def _is_busy(self) -> bool:
        return self.dispatcher.workers.busy > 0 or self.dispatcher.sending_back > 0

    async def _leave_group(self, commit_s: float) -> None:
        self.dispatcher.stop()
        try:
            await self._commit_last(commit_s)
            await self.dispatcher.workers.shutdown(cancel=True)
            if self._tracer is not None:
                await self._tracer.close(1.0)
        finally:
            try:
                await self.instance.remove_consumer(self.state.group, self.coordinator)
            finally:
                await self.instance.release()

    async def _commit_last(self, timeout_s: float) -> None:
        group = self.state.group
        try:
            async with asyncio.timeout(timeout_s):
                await self.coordinator.commit_last()
        except (MqfastError, TimeoutError, OSError) as error:
            _log.warning("group %s: offsets could not be kept, messages come again: %r", group, error)
        except Exception:
            _log.exception("group %s: offsets could not be kept, messages come again", group)

"""The reasons why a consumer gets no message: for ``stats()`` and for a warning half a minute after the start."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from mqfast.client.consumer.push.dispatcher import Dispatcher
from mqfast.client.consumer.push.state import Assigned, ConsumerState, TopicSubscription
from mqfast.client.consumer.subscription import SQL92
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import Request
from mqfast.errors import FieldError, MqfastError
from mqfast.remoting.bodies import build_tables, decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode

__all__ = ["LOOK_S", "Diagnostics"]

_log = logging.getLogger("mqfast.client.consumer")
LOOK_S: Final = 30.0
STUCK_S: Final = 30.0
_NAMES: Final = 5
_OTHER_SIGNS: Final = re.compile(r"[\s,;|&]")
"""Separators between tags that brokers accept as part of a tag."""


class _Subscription(Struct, rename="camel"):
    sub_string: str | None = None


class _Connections(Struct, rename="camel"):
    subscription_table: dict[str, _Subscription] = {}


class Diagnostics:
    """The state of a consumer in words and counts. Thread: that of the loop, except ``reasons`` and ``stats``."""

    def __init__(self, state: ConsumerState, instance: ClientInstance, dispatcher: Dispatcher) -> None:
        self._state: Final = state
        self._instance: Final = instance
        self._dispatcher: Final = dispatcher
        self._disagreements: list[str] = []
        self._has_warned = False

    async def warn_once(self) -> None:
        """Write a single warning with the reasons, unless a message has arrived."""
        state = self._state
        if self._has_warned or any(assigned.pulled for assigned in state.assigned.values()):
            return
        if state.is_clustering:
            await self._compare_subscriptions()
        reasons = self.reasons()
        self._has_warned = True
        _log.warning(
            "group %s: no message in %g s: %s", state.group, LOOK_S, "; ".join(reasons) or "the queues are empty"
        )

    async def _compare_subscriptions(self) -> None:
        """Compare the group's subscriptions at a broker with those of this member."""
        instance, fields = self._instance, {"consumerGroup": self._state.group}
        differences: list[str] = []
        for broker in list(instance.routes.brokers.values())[:1]:
            for address in list(broker.addresses.values())[:1]:
                try:
                    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
                    answer = await instance.driver.request(Request(address, code, fields))
                    if answer is None or answer.code != ResponseCode.SUCCESS:
                        continue
                    table = decode_body(bytes(answer.body), _Connections, "body").subscription_table
                except (MqfastError, FieldError):
                    continue
                differences += self._differences(table)
        self._disagreements = differences

    def _differences(self, table: Mapping[str, _Subscription]) -> list[str]:
        differences = []
        for topic, wanted in self._state.wanted.items():
            theirs = table.get(topic)
            ours = wanted.subscription.expression
            if theirs is None:
                text = f"topic {topic}: a member of the group does not subscribe to it; all must subscribe alike"
                differences.append(text)
            elif theirs.sub_string != ours:
                text = f"topic {topic}: this member wants {ours!r}, another one {theirs.sub_string!r}"
                differences.append(f"{text}; all members of a group must subscribe alike")
        differences += [
            f"topic {topic}: another member of the group subscribes to it, this one does not; all must subscribe alike"
            for topic in table
            if topic not in self._state.wanted
        ]
        return differences

    def reasons(self) -> list[str]:
        """Return the known reasons why no message arrives. Thread: any."""
        state, dispatcher = self._state, self._dispatcher
        if state.is_closing:
            return ["the consumer is closed"]
        reasons = [
            f"topic {topic}: no name server knows it" for topic in list(state.missing) if topic != state.retry_topic
        ]
        reasons += [
            f"topic {topic}: the last subscription was refused: {why}" for topic, why in list(state.refused.items())
        ]
        reasons += self._disagreements
        if not state.resumed.is_set():
            reasons.append("the consumer is paused")
        for topic, wanted in list(state.wanted.items()):
            if topic == state.retry_topic or topic in state.missing:
                continue
            mine = [assigned for queue, assigned in list(state.assigned.items()) if queue.topic == topic]
            if not mine:
                reasons.append(self._without_queue(topic))
                continue
            filtered = sum(assigned.filtered for assigned in mine)
            if filtered and not any(assigned.pulled for assigned in mine):
                what = wanted.subscription.expression
                text = f"topic {topic}: {filtered} messages did not match {what!r}, and none did{_hint(wanted)}"
                reasons.append(text)
            for assigned in mine:
                if assigned.state == "flow control" or assigned.state.startswith(("pull failed", "no place")):
                    queue = assigned.queue
                    reasons.append(f"{queue.topic}/{queue.broker_name}/{queue.queue_id}: {assigned.state}")
        if dispatcher.refusal:
            reasons.append(dispatcher.refusal)
        longest_s, message = dispatcher.longest_s()
        if message is not None and longest_s > STUCK_S:
            reasons.append(f"a handler has message {message.msg_id} of {message.topic} for {longest_s:.0f} s")
        return reasons

    def _without_queue(self, topic: str) -> str:
        state = self._state
        if topic in state.not_shared:
            return f"topic {topic}: {state.not_shared[topic]}"
        queues = len(self._instance.routes.subscribe_queues(topic))
        members = state.members.get(topic, [])
        names = ", ".join(members[:_NAMES]) + (" ..." if len(members) > _NAMES else "")
        return (
            f"topic {topic}: this member has none of {queues} queues, which {len(members)} members share ({names}); "
            "a queue has one member at most"
        )

    def stats(self, *, retry: bool = False) -> dict[str, Any]:
        """Return counts and states of the consumer. Args: retry: with the retry topic. Thread: any."""
        state, dispatcher = self._state, self._dispatcher
        longest_s, _ = dispatcher.longest_s()
        queues = list(state.assigned.values())
        counts = list(dispatcher.counts.values())
        return {
            "why_nothing": self.reasons(),
            "done": sum(count.done for count in counts),
            "failed": sum(count.failed for count in counts),
            "given_back": sum(count.given_back for count in counts),
            "timed_out": sum(count.timed_out for count in counts),
            "cached_messages": sum(assigned.pq.count for assigned in queues),
            "cached_bytes": sum(assigned.pq.bytes for assigned in queues),
            "running": dispatcher.workers.busy,
            "longest_running_s": longest_s,
            "members": {
                state.plain(topic): list(ids)
                for topic, ids in list(state.members.items())
                if retry or topic != state.retry_topic
            },
            "queues": {assigned.queue: _queue_stats(assigned) for assigned in queues if retry or not assigned.is_retry},
        }


def _queue_stats(assigned: Assigned) -> dict[str, Any]:
    pq, max_offset = assigned.pq, assigned.max_offset
    return {
        "state": assigned.state,
        "offset": pq.committable if assigned.has_position else None,
        "pull_offset": pq.next_offset if assigned.has_position else None,
        "behind": max(0, max_offset - pq.committable) if max_offset >= 0 else None,
        "cached": pq.count,
        "cached_bytes": pq.bytes,
        "pulled": assigned.pulled,
        "filtered": assigned.filtered,
    }


def _hint(wanted: TopicSubscription) -> str:
    """Return a hint for an expression that matches no message."""
    subscription = wanted.subscription
    if (
        subscription.kind == SQL92
        or "||" in subscription.expression
        or not _OTHER_SIGNS.search(subscription.expression)
    ):
        return ""
    return " (this is one tag; several are joined by ||)"


build_tables(__name__)

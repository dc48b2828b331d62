"""Why a consumer gets nothing, in words: for ``stats()`` and for one warning half a minute after the start.

Room: client. It must never change anything.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from mqfast.client.consumer.push.state import TopicSubscription
from mqfast.client.consumer.subscription import SQL92
from mqfast.client.net.request_steps import Request
from mqfast.errors import FieldError, MqfastError
from mqfast.remoting.bodies import build_tables, decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from mqfast.client.consumer.push.engine import PushEngine

__all__ = ["LOOK_S", "Diagnostics", "stats"]

_log = logging.getLogger("mqfast.client.consumer")
LOOK_S: Final = 30.0
STUCK_S: Final = 30.0
_NAMES: Final = 5
_OTHER_SIGNS: Final = re.compile(r"[\s,;|&]")
"""What users write between tags, and brokers take as a part of one tag."""


class _Subscription(Struct, rename="camel"):
    sub_string: str | None = None


class _Connections(Struct, rename="camel"):
    subscription_table: dict[str, _Subscription] = {}


class Diagnostics:
    """The reasons of one consumer. Thread: that of the loop, but for ``reasons``: any."""

    def __init__(self, engine: PushEngine) -> None:
        self._engine = engine
        self._disagreements: list[str] = []
        self._told = False

    async def look(self) -> None:
        """While no message has come: does the group want something else? One warning says what is the matter."""
        engine = self._engine
        if self._told or any(one.pulled for one in engine.assigned.values()):
            return
        if engine.is_clustering:
            await self._compare()
        found = self.reasons()
        self._told = True
        _log.warning(
            "group %s: no message in %g s: %s", engine.group, LOOK_S, "; ".join(found) or "the queues are empty"
        )

    async def _compare(self) -> None:
        """What the broker has as the group's subscriptions, beside this member's."""
        engine, fields = self._engine, {"consumerGroup": self._engine.group}
        found: list[str] = []
        for place in list(engine.instance.routes.brokers.values())[:1]:
            for address in list(place.addresses.values())[:1]:
                try:
                    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
                    answer = await engine.instance.driver.request(Request(address, code, fields))
                    if answer is None or answer.code != ResponseCode.SUCCESS:
                        continue
                    table = decode_body(bytes(answer.body), _Connections, "body").subscription_table
                except (MqfastError, FieldError):
                    continue
                found += self._differences(table)
        self._disagreements = found

    def _differences(self, table: Mapping[str, _Subscription]) -> list[str]:
        engine = self._engine
        found = []
        for topic, wanted in engine.wanted.items():
            theirs = table.get(topic)
            ours = wanted.subscription.expression
            if theirs is None:
                found.append(f"topic {topic}: a member of the group does not subscribe to it; all must subscribe alike")
            elif theirs.sub_string != ours:
                text = f"topic {topic}: this member wants {ours!r}, another one {theirs.sub_string!r}"
                found.append(f"{text}; all members of a group must subscribe alike")
        found += [
            f"topic {topic}: another member of the group subscribes to it, this one does not; all must subscribe alike"
            for topic in table
            if topic not in engine.wanted
        ]
        return found

    def reasons(self) -> list[str]:
        """What keeps messages from coming, or more of them; empty when nothing is known to."""
        engine = self._engine
        if engine.is_closing:
            return ["the consumer is closed"]
        found = [
            f"topic {topic}: no name server knows it" for topic in list(engine.missing) if topic != engine.retry_topic
        ]
        found += [
            f"topic {topic}: the last subscription was refused: {why}" for topic, why in list(engine.refused.items())
        ]
        found += self._disagreements
        if not engine.pulls.resumed.is_set():
            found.append("the consumer is paused")
        for topic, wanted in list(engine.wanted.items()):
            if topic == engine.retry_topic or topic in engine.missing:
                continue
            mine = [one for queue, one in list(engine.assigned.items()) if queue.topic == topic]
            if not mine:
                found.append(self._without_queue(topic))
                continue
            filtered = sum(one.filtered for one in mine)
            if filtered and not any(one.pulled for one in mine):
                what = wanted.subscription.expression
                found.append(f"topic {topic}: {filtered} messages did not match {what!r}, and none did{_hint(wanted)}")
            for one in mine:
                if one.state == "flow control" or one.state.startswith(("pull failed", "no place")):
                    found.append(f"{one.queue.topic}/{one.queue.broker_name}/{one.queue.queue_id}: {one.state}")
        if engine.handling.refusal:
            found.append(engine.handling.refusal)
        longest_s, message = engine.handling.longest_s()
        if message is not None and longest_s > STUCK_S:
            found.append(f"a handler has message {message.msg_id} of {message.topic} for {longest_s:.0f} s")
        return found

    def _without_queue(self, topic: str) -> str:
        engine = self._engine
        if topic in engine.not_shared:
            return f"topic {topic}: {engine.not_shared[topic]}"
        queues = len(engine.instance.routes.subscribe_queues(topic))
        members = engine.members.get(topic, [])
        names = ", ".join(members[:_NAMES]) + (" ..." if len(members) > _NAMES else "")
        return (
            f"topic {topic}: this member has none of {queues} queues, which {len(members)} members share ({names}); "
            "a queue has one member at most"
        )


def _hint(wanted: TopicSubscription) -> str:
    """What may be wrong with an expression that matches nothing."""
    subscription = wanted.subscription
    if (
        subscription.kind == SQL92
        or "||" in subscription.expression
        or not _OTHER_SIGNS.search(subscription.expression)
    ):
        return ""
    return " (this is one tag; several are joined by ||)"


def stats(engine: PushEngine, *, retry: bool = False) -> dict[str, Any]:
    """Counts and states of a consumer. Args: retry: also of its retry topic. Thread: any."""
    longest_s, _ = engine.handling.longest_s()
    assigned = list(engine.assigned.values())
    counts = list(engine.handling.counts.values())
    return {
        "why_nothing": engine.why.reasons(),
        "done": sum(one.done for one in counts),
        "failed": sum(one.failed for one in counts),
        "given_back": sum(one.given_back for one in counts),
        "timed_out": sum(one.timed_out for one in counts),
        "cached_messages": sum(one.pq.count for one in assigned),
        "cached_bytes": sum(one.pq.bytes for one in assigned),
        "running": engine.workers.busy,
        "longest_running_s": longest_s,
        "members": {
            engine.plain(topic): list(ids)
            for topic, ids in list(engine.members.items())
            if retry or topic != engine.retry_topic
        },
        "queues": {
            one.queue: {
                "state": one.state,
                "offset": one.pq.committable if one.has_position else None,
                "pull_offset": one.pq.next_offset if one.has_position else None,
                "behind": max(0, one.max_offset - one.pq.committable) if one.max_offset >= 0 else None,
                "cached": one.pq.count,
                "cached_bytes": one.pq.bytes,
                "pulled": one.pulled,
                "filtered": one.filtered,
            }
            for one in assigned
            if retry or not one.is_retry
        },
    }


build_tables(__name__)

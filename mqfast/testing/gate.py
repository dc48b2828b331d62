"""The door of a test's servers at their connections: it notes what is asked, and does what the faults that are on say.

Room: testing. It must never change a request or an answer that no fault is for; a duplicate delivery alone is an answer
that is changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mqfast.remoting.channel import Channel, End
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand, pull_header

__all__ = ["Asked", "Fault", "Gate", "GatedChannel", "Place"]

_NOTED_MAX: Final = 10_000
_BODY_MAX: Final = 4096  # of a request that is noted
_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class Place(NamedTuple):
    """A queue of a broker, as a group reads it."""

    broker: str
    group: str
    topic: str
    queue_id: int


class Asked:
    """One request of a client.

    Attributes: ``server``: the name of the broker or name server; ``client``: host:port; ``code`` and ``name`` of the
        request; ``fields`` of its header as text; ``body``: its first 4,096 bytes; ``body_bytes``: its length;
        ``at_ms``: the cluster's time; ``answer``: code of the answer, None where none was sent; ``remark``: of the
        answer; ``fault``: what was done to it.
    """

    __slots__ = (
        "answer", "at_ms", "body", "body_bytes", "client", "code", "fault", "fields", "is_oneway", "remark", "server",
    )  # fmt: skip

    def __init__(self, server: str, channel: Channel, request: RemotingCommand, at_ms: int) -> None:
        self.server = server
        self.client = f"{channel.peer[0]}:{channel.peer[1]}"
        self.code = request.code
        self.fields: Mapping[str, Any] = request.ext_fields
        self.body = bytes(memoryview(request.body)[:_BODY_MAX])
        self.body_bytes = len(request.body)
        self.is_oneway = request.is_oneway
        self.at_ms = at_ms
        self.answer: int | None = None
        self.remark: str | None = None
        self.fault = ""

    @property
    def name(self) -> str:
        """RocketMQ's name of the request code."""
        try:
            return RequestCode(self.code).name
        except ValueError:
            return f"code {self.code}"

    def __repr__(self) -> str:
        fields = self.fields
        about = [str(fields[name]) for name in ("topic", "b", "consumerGroup", "group", "a") if fields.get(name)][:2]
        answered = "one-way" if self.is_oneway else "no answer" if self.answer is None else f"answer {self.answer}"
        fault = f", {self.fault}" if self.fault else ""
        return f"<{self.name} {' '.join(about)} of {self.client} to {self.server}: {answered}{fault}>"


class Fault:
    """One fault that is on: for which codes, how often still, and what it does."""

    __slots__ = ("answer", "kind", "left", "only", "remark", "seconds", "text")

    def __init__(
        self,
        kind: str,
        only: frozenset[int],
        times: int | None,
        *,
        seconds: float = 0.0,
        answer: int = 0,
        remark: str = "",
    ) -> None:
        self.kind = kind
        self.only = only
        self.left = times
        self.seconds = seconds
        self.answer = answer
        self.remark = remark
        self.text = kind + (f" for {sorted(only)}" if only else "")

    def takes(self, code: int) -> bool:
        """Is this request one that the fault is for? It counts then."""
        if (self.only and code not in self.only) or self.left == 0:
            return False
        if self.left is not None:
            self.left -= 1
        return True

    def __repr__(self) -> str:
        return self.text + ("" if self.left is None else f", {self.left} times more")


class Gate:
    """What the servers of one test cluster share.

    Args: now_ms: the cluster's time.
    Attributes: ``faults``: those that are on, the oldest first; ``refuses``: are new connections refused?
        ``starting``: how many brokers start now; ``channels``: all connections; ``asked``: requests, the last ones;
        ``arrived``: called after each answer and each closed connection; ``counts``: how many of each code ever came;
        ``first_pulls``: where a group began with a queue; ``delivered``: the offsets that it got, pull by pull.
    Thread: that of the event loop.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.faults: list[Fault] = []
        self.refuses = 0
        self.starting = 0
        self.channels: set[GatedChannel] = set()
        self.asked: deque[Asked] = deque(maxlen=_NOTED_MAX)
        self.counts: Counter[int] = Counter()
        self.arrived: Callable[[], object] = lambda: None
        self._now_ms = now_ms
        self.first_pulls: dict[Place, int] = {}
        self.delivered: dict[Place, list[tuple[int, int]]] = {}
        self._duplicates: dict[tuple[Place, int], None] = {}
        self._pulls = 0

    def maker(self, server: str, *, of_brokers: bool = False) -> Callable[..., Channel]:
        """What makes the connections of a server. Args: of_brokers: do brokers connect to it, too?"""

        def make(end: End, **settings: Any) -> Channel:
            return GatedChannel(self, server, of_brokers, end, **settings)

        return make

    def forget(self) -> None:
        """No faults, nothing noted."""
        self.faults.clear()
        self.refuses = 0
        self.asked.clear()
        self.first_pulls.clear()
        self.delivered.clear()
        self._duplicates.clear()

    def note(self, channel: GatedChannel, request: RemotingCommand) -> Asked:
        """A request has come."""
        asked = Asked(channel.server, channel, request, self._now_ms())
        self.asked.append(asked)
        self.counts[request.code] += 1
        return asked

    def fault_for(self, code: int, *kinds: str) -> Fault | None:
        """The first fault of these kinds that is for this request."""
        return next((one for one in self.faults if one.kind in kinds and one.takes(code)), None)

    def pulled(self, server: str, request: RemotingCommand) -> None:
        """A group asks for messages."""
        place, offset = _place(server, request)
        self.first_pulls.setdefault(place, offset)

    def delivery(self, server: str, request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        """The answer to a pull; with the fault of duplicates every n-th says to pull the same messages once more."""
        if answer.code != 0:
            return answer
        place, offset = _place(server, request)
        self.delivered.setdefault(place, []).append((offset, int(answer.ext_fields["nextBeginOffset"])))
        every = next((int(one.seconds) for one in self.faults if one.kind == "duplicate deliveries"), 0)
        if not every or (place, offset) in self._duplicates:
            return answer
        self._pulls += 1
        if self._pulls % every:
            return answer
        self._duplicates[place, offset] = None
        changed = {**answer.ext_fields, "nextBeginOffset": str(offset)}
        return request.response(answer.code, changed, answer.body, remark=answer.remark)


def _place(server: str, request: RemotingCommand) -> tuple[Place, int]:
    header = pull_header(request)
    return Place(server, header.consumer_group, header.topic, header.queue_id), header.queue_offset


class GatedChannel(Channel):
    """A connection whose requests and answers pass the gate."""

    def __init__(self, gate: Gate, server: str, of_brokers: bool, end: End, **settings: Any) -> None:
        super().__init__(end, **settings)
        self.server = server
        self.is_broker = False
        self._gate = gate
        self._of_brokers = of_brokers
        self._serve = self._dispatch
        self._dispatch = self._pass
        self._open: dict[int, tuple[Asked, bool]] = {}  # opaque -> what was noted, is its answer lost?

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection is there."""
        if self._gate.refuses and not self._of_brokers:
            self.is_closed = True
            transport.abort()  # type: ignore[attr-defined]
            return
        super().connection_made(transport)
        self._gate.channels.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The TCP connection is gone."""
        super().connection_lost(error)
        self._gate.channels.discard(self)
        self._gate.arrived()

    def _pass(self, _channel: Channel, request: RemotingCommand) -> None:
        gate, code = self._gate, request.code
        if self._of_brokers and code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
            self.is_broker = True
        # A broker that starts asks for other masters of its name, before it registers.
        is_start = gate.starting and self._of_brokers and code == RequestCode.GET_BROKER_CLUSTER_INFO
        if self.is_broker or is_start:
            self._serve(self, request)
            return
        asked = gate.note(self, request)
        if code in _PULLS:
            gate.pulled(self.server, request)
        if gate.faults and self._is_stopped(asked, request):
            return
        lost = gate.fault_for(code, "lose answers") is not None if gate.faults else False
        if lost:
            asked.fault = "the answer is lost"
        if not request.is_oneway:
            self._open[request.opaque] = asked, lost
        slow = gate.fault_for(code, "slow") if gate.faults else None
        if slow is None:
            self._serve(self, request)
        else:
            asked.fault = asked.fault or f"{slow.seconds:g} s late"
            self._loop.call_later(slow.seconds, self._serve_late, request)

    def _is_stopped(self, asked: Asked, request: RemotingCommand) -> bool:
        fault = self._gate.fault_for(request.code, "lose requests", "answer")
        if fault is None:
            return False
        if fault.kind == "answer":
            asked.fault = "answered by a fault"
            if not request.is_oneway:
                self._open[request.opaque] = asked, False
            self.answer(request, request.response(fault.answer, remark=fault.remark or None))
        else:
            asked.fault = "lost"
            super().answer(request, None)
        return True

    def _serve_late(self, request: RemotingCommand) -> None:
        if not self.is_closed:
            self._serve(self, request)

    def answer(self, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        """Answer a request, unless a fault loses the answer."""
        asked, lost = self._open.pop(request.opaque, (None, False))
        if asked is not None and answer is not None and not self.is_closed:
            if lost:
                answer = None
            else:
                if request.code in _PULLS:
                    answer = self._gate.delivery(self.server, request, answer)
                asked.answer, asked.remark = answer.code, answer.remark
        super().answer(request, answer)
        self._gate.arrived()

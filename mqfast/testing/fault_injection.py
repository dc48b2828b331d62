"""Records requests of the test servers, and applies the active faults.

Faults of one request apply in this order: ``slow`` (the sum of all), ``lose requests``, ``answer``; then the request is
served, and ``lose answers`` applies to any answer. Requests and answers without a fault stay unchanged; only duplicate
deliveries change the content of an answer (``duplicates.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Final, NamedTuple

from mqfast.remoting.channel import Channel, Endpoint
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.testing.duplicates import POLL_S, Duplicates, QueueOffset, Reader, place_of

__all__ = ["Asked", "FaultDecision", "FaultInjection", "GatedChannel", "InjectedFault", "QueueOffset"]

_NOTED_MAX: Final = 10_000
_BODY_MAX: Final = 4096  # of a recorded request
_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class Asked:
    """A request of a client.

    Attributes: ``server``: name of the broker or name server; ``client``: host:port; ``code`` and ``name`` of the
        request; ``method``: of a gRPC call, empty otherwise; ``fields`` of the header as text; ``body``: the first
        4,096 bytes; ``body_bytes``: the length; ``at_ms``: the cluster's time; ``answer``: code of the answer, None
        without an answer; ``remark``: of the answer; ``fault``: the applied fault.
    The ``code`` of a gRPC call is that of the request with the same effect; ``answer`` is a code of the gRPC API.
    """

    __slots__ = (
        "answer", "at_ms", "body", "body_bytes", "client", "code", "fault", "fields", "is_oneway", "method", "remark",
        "server",
    )  # fmt: skip

    def __init__(
        self,
        server: str,
        peer: tuple[str, int],
        code: int,
        fields: Mapping[str, Any],
        body: bytes | memoryview,
        at_ms: int,
        *,
        is_oneway: bool = False,
        method: str = "",
    ) -> None:
        self.server = server
        self.client = f"{peer[0]}:{peer[1]}"
        self.code = code
        self.fields = fields
        self.body = bytes(memoryview(body)[:_BODY_MAX])
        self.body_bytes = len(body)
        self.is_oneway = is_oneway
        self.method = method
        self.at_ms = at_ms
        self.answer: int | None = None
        self.remark: str | None = None
        self.fault = ""

    @property
    def name(self) -> str:
        """Return RocketMQ's name of the request code, or the method of a gRPC call."""
        if self.method:
            return self.method
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


class FaultDecision(NamedTuple):
    """The faults that act on a request, in their order: ``late_s``, ``is_lost``, ``own``, ``is_answer_lost``."""

    late_s: float
    is_lost: bool
    own: InjectedFault | None
    is_answer_lost: bool

    def __str__(self) -> str:
        parts = (
            f"{self.late_s:g} s late" if self.late_s else "",
            "lost" if self.is_lost else "",
            "answered by a fault" if self.own is not None else "",
            "the answer is lost" if self.is_answer_lost else "",
        )
        return ", ".join(filter(None, parts))


class InjectedFault:
    """An active fault: its codes, remaining count, and effect."""

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
        """Return whether the fault applies to a request, which then counts."""
        if (self.only and code not in self.only) or self.left == 0:
            return False
        if self.left is not None:
            self.left -= 1
        return True

    def __repr__(self) -> str:
        return self.text + ("" if self.left is None else f", {self.left} times more")


class FaultInjection:
    """Shared state of the servers of a test cluster.

    Args: now_ms: the cluster's time.
    Attributes: ``faults``: active faults, the oldest first; ``refuses``: whether new connections are refused;
        ``starting``: count of brokers that start now; ``channels``: all connections; ``asked``: the last requests;
        ``arrived``: called after each answer and each closed connection; ``counts``: count of all requests by code;
        ``first_pulls``: first offset of a group in a queue; ``delivered``: offsets of each pull of a group; ``reader``:
        the source of a pull; ``is_restarting``, ``anew``: see ``restart``.
    Thread: that of the event loop.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.faults: list[InjectedFault] = []
        self.refuses = 0
        self.starting = 0
        self.channels: set[GatedChannel] = set()
        self.asked: deque[Asked] = deque(maxlen=_NOTED_MAX)
        self.counts: Counter[int] = Counter()
        self.arrived: Callable[[], object] = lambda: None
        self.now_ms: Final = now_ms
        self.first_pulls: dict[QueueOffset, int] = {}
        self.delivered: dict[QueueOffset, list[tuple[int, int]]] = {}
        self.is_restarting = False
        self.anew: set[QueueOffset] = set()
        self.reader: Callable[[QueueOffset, Channel], Reader] = lambda _place, _channel: Reader()
        self.duplicates = Duplicates(self._every, lambda place, channel: self.reader(place, channel))

    def maker(self, server: str, *, of_brokers: bool = False) -> Callable[..., Channel]:
        """Return a factory of the connections of a server. Args: of_brokers: whether brokers connect as well."""

        def make(end: Endpoint, **settings: Any) -> Channel:
            return GatedChannel(self, server, of_brokers, end, **settings)

        return make

    def clear(self) -> None:
        """Clear faults and recorded requests."""
        self.faults.clear()
        self.refuses = 0
        self.asked.clear()
        self.first_pulls.clear()
        self.delivered.clear()
        self.duplicates.clear()

    @contextlib.contextmanager
    def restart(self, ending: Container[str]) -> Iterator[None]:
        """Hold pulls while brokers are emptied; afterwards present pull consumers begin their queues at 0 again.

        Args: ending: brokers that restart, to which all consumers reconnect.
        """
        self.is_restarting = True
        for channel in self.channels:
            for place in channel.places:
                reader = self.reader(place, channel)
                if reader.is_member and not reader.grace_s:
                    channel.restarts.add(place)
                if reader.is_member and place.broker in ending:
                    self.anew.add(place)
        try:
            yield
        finally:
            self.is_restarting = False

    def _every(self) -> int:
        return next((int(fault.seconds) for fault in self.faults if fault.kind == "duplicate deliveries"), 0)

    def note(self, asked: Asked) -> Asked:
        """Record a request. Returns: the record."""
        self.asked.append(asked)
        self.counts[asked.code] += 1
        return asked

    def decide(self, code: int) -> FaultDecision:
        """Return what the active faults do to a request, which then counts for their ``times``."""
        late_s = sum(fault.seconds for fault in self.faults if fault.kind == "slow" and fault.takes(code))
        is_lost = self._fault_for(code, "lose requests") is not None
        own = None if is_lost else self._fault_for(code, "answer")
        return FaultDecision(late_s, is_lost, own, not is_lost and self._fault_for(code, "lose answers") is not None)

    def _fault_for(self, code: int, kind: str) -> InjectedFault | None:
        """Return the first fault of this kind for this request."""
        return next((fault for fault in self.faults if fault.kind == kind and fault.takes(code)), None)

    def pulled(self, channel: GatedChannel, request: RemotingCommand) -> None:
        """Record a pull of a group."""
        place, offset = place_of(channel.server, request)
        self.first_pulls.setdefault(place, offset)
        channel.places.add(place)

    def delivery(self, channel: GatedChannel, request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        """Return the answer to a pull, recorded; duplicate deliveries may shorten the answer, or move its begin."""
        if answer.code != 0:
            return answer
        place, offset = place_of(channel.server, request)
        behind = int(answer.ext_fields["nextBeginOffset"])
        changed = self.duplicates.of(channel.server, request, answer, channel)
        after = int(changed.ext_fields["nextBeginOffset"])
        self.delivered.setdefault(place, []).append((offset, after if after > offset else behind))
        return changed


class GatedChannel(Channel):
    """A connection whose requests and answers pass the fault injection."""

    def __init__(self, gate: FaultInjection, server: str, of_brokers: bool, end: Endpoint, **settings: Any) -> None:
        super().__init__(end, **settings)
        self.server = server
        self.is_broker = False
        self._gate = gate
        self._of_brokers = of_brokers
        self.places: set[QueueOffset] = set()  # pulled over this connection
        self.restarts: set[QueueOffset] = set()  # reader begins at 0 again
        self._serve = self._dispatch
        self._dispatch = self._pass
        self._open: dict[int, tuple[Asked, bool]] = {}  # opaque -> record, and whether its answer is lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new TCP connection."""
        if self._gate.refuses and not self._of_brokers:
            self.is_closed = True
            transport.abort()  # type: ignore[attr-defined]
            return
        super().connection_made(transport)
        self._gate.channels.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Remove a closed TCP connection."""
        super().connection_lost(error)
        self._gate.channels.discard(self)
        self._gate.arrived()

    def _pass(self, _channel: Channel, request: RemotingCommand) -> None:
        gate, code = self._gate, request.code
        if self._of_brokers and code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
            self.is_broker = True
        # A broker that starts requests other masters of its name before the registration.
        is_start = gate.starting and self._of_brokers and code == RequestCode.GET_BROKER_CLUSTER_INFO
        if self.is_broker or is_start:
            self._serve(self, request)
            return
        fields, at_ms = request.ext_fields, gate.now_ms()
        asked = gate.note(Asked(self.server, self.peer, code, fields, request.body, at_ms, is_oneway=request.is_oneway))
        if code in _PULLS:
            gate.pulled(self, request)
            if (gate.is_restarting or self.restarts or gate.anew) and self._restarted(asked, request):
                return
        if gate.faults:
            self._act(asked, request)
        else:
            self._take(asked, request, lost=False)

    def _take(self, asked: Asked, request: RemotingCommand, *, lost: bool) -> None:
        if not request.is_oneway:
            self._open[request.opaque] = asked, lost
        self._serve(self, request)

    def _act(self, asked: Asked, request: RemotingCommand) -> None:
        """Apply the active faults; see the head of this file for the order."""
        decision = self._gate.decide(request.code)
        late_s, is_lost, own, is_answer_lost = decision
        asked.fault = str(decision)

        def act() -> None:
            if self.is_closed:
                return
            if is_lost:
                super(GatedChannel, self).answer(request, None)
            elif own is None:
                self._serve_or_repeat(asked, request, is_answer_lost)
            else:
                if not request.is_oneway:
                    self._open[request.opaque] = asked, is_answer_lost
                self.answer(request, request.response(own.answer, remark=own.remark or None))

        if late_s:
            self._loop.call_later(late_s, act)
        else:
            act()

    def _restarted(self, asked: Asked, request: RemotingCommand) -> bool:
        """Return whether a pull is of a consumer from before a reset, which must then begin at 0 again."""
        place, offset = place_of(self.server, request)
        gate, is_anew = self._gate, place in self._gate.anew and offset > 0
        code, after = ResponseCode.PULL_NOT_FOUND, offset
        if not gate.is_restarting:
            gate.anew.discard(place)
            if place not in self.restarts and not is_anew:
                return False
            self.restarts.discard(place)
            code, after = ResponseCode.PULL_OFFSET_MOVED, 0
        fields = {
            "suggestWhichBrokerId": "0", "nextBeginOffset": str(after), "minOffset": "0", "maxOffset": str(after),
        }  # fmt: skip
        self._answer_later(asked, request, request.response(code, fields, remark="OFFSET_RESET"), lost=False)
        return True

    def _answer_later(self, asked: Asked, request: RemotingCommand, answer: RemotingCommand, *, lost: bool) -> None:
        self._open[request.opaque] = asked, lost

        def act() -> None:
            if not self.is_closed:
                self.answer(request, answer)

        self._loop.call_later(POLL_S, act)

    def _serve_or_repeat(self, asked: Asked, request: RemotingCommand, lost: bool) -> None:
        """Serve a request, unless the request is a pull that must wait for a second delivery."""
        instead = self._gate.duplicates.instead(self.server, request, self) if request.code in _PULLS else None
        if instead is None:
            self._take(asked, request, lost=lost)
        else:
            self._answer_later(asked, request, instead, lost=lost)

    def answer(self, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        """Answer a request, unless a fault loses the answer."""
        asked, lost = self._open.pop(request.opaque, (None, False))
        if asked is not None and answer is not None and not self.is_closed:
            if lost:
                answer = None
            else:
                if request.code in _PULLS:
                    answer = self._gate.delivery(self, request, answer)
                asked.answer, asked.remark = answer.code, answer.remark
        super().answer(request, answer)
        self._gate.arrived()

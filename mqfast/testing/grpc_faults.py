"""Records the gRPC calls of the test brokers, and applies the active faults to the calls.

The faults are those of ``fault_injection.py``, in the same order. Messages of the stream Telemetry are recorded, and
meet no fault of requests. Never changes the content of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mqfast.broker.grpc.codes import status_of
from mqfast.grpc.connection import Call, GrpcConnection, Method, Outcome
from mqfast.grpc.http2 import Stream
from mqfast.grpc.messages import Message
from mqfast.remoting.codes import RequestCode
from mqfast.testing.fault_injection import Asked, FaultDecision, FaultInjection

__all__ = ["CODES", "GatedCall", "maker"]

CODES: Final = {
    "QueryRoute": RequestCode.GET_ROUTEINFO_BY_TOPIC,
    "QueryAssignment": RequestCode.QUERY_ASSIGNMENT,
    "Heartbeat": RequestCode.HEART_BEAT,
    "Telemetry": RequestCode.HEART_BEAT,
    "NotifyClientTermination": RequestCode.UNREGISTER_CLIENT,
    "SendMessage": RequestCode.SEND_MESSAGE_V2,
    "EndTransaction": RequestCode.END_TRANSACTION,
    "RecallMessage": RequestCode.RECALL_MESSAGE,
    "ReceiveMessage": RequestCode.POP_MESSAGE,
    "AckMessage": RequestCode.ACK_MESSAGE,
    "ChangeInvisibleDuration": RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    "ForwardMessageToDeadLetterQueue": RequestCode.CONSUMER_SEND_MSG_BACK,
    "PullMessage": RequestCode.PULL_MESSAGE,
    "UpdateOffset": RequestCode.UPDATE_CONSUMER_OFFSET,
    "GetOffset": RequestCode.QUERY_CONSUMER_OFFSET,
    "QueryOffset": RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
}
"""The request code with the effect of each method, by which records and faults name a call."""


def maker(gate: FaultInjection, server: str) -> Callable[..., Call]:
    """Return a factory of the gRPC calls of a server."""

    def make(connection: GrpcConnection, stream: Stream, method: Method) -> Call:
        return GatedCall(gate, server, connection, stream, method)

    return make


class GatedCall(Call):
    """A gRPC call that passes the fault injection."""

    __slots__ = ("_asked", "_gate", "_is_answer_lost", "_server")

    def __init__(
        self, gate: FaultInjection, server: str, connection: GrpcConnection, stream: Stream, method: Method
    ) -> None:
        super().__init__(connection, stream, method)
        self._gate = gate
        self._server = server
        self._asked: Asked | None = None
        self._is_answer_lost = False

    def serve(self, message: Message) -> Outcome:
        """Serve a message, unless a fault acts."""
        gate, name = self._gate, self.name
        code = CODES.get(name, RequestCode.HEART_BEAT)
        peer, fields, body = self.channel.peer, _fields(message), _body(message)
        asked = gate.note(Asked(self._server, peer, code, fields, body, gate.now_ms(), method=name))
        if self.method.is_stream:
            return super().serve(message)
        self._asked = asked
        if not gate.faults:
            return super().serve(message)
        decision = gate.decide(code)
        asked.fault = str(decision)
        if not asked.fault:
            return super().serve(message)
        return self._act(message, decision)

    async def _act(self, message: Message, decision: FaultDecision) -> Message | None:
        if decision.late_s:
            await asyncio.sleep(decision.late_s)
        if decision.is_lost:
            await _end_of_call()
        self._is_answer_lost = decision.is_answer_lost
        answer: Message | None = None
        if decision.own is not None:
            answer = self.method.response(status=status_of(decision.own.answer, decision.own.remark))
        else:
            outcome = super().serve(message)
            answer = await outcome if isinstance(outcome, Awaitable) else outcome
        if decision.is_answer_lost:
            self._gate.arrived()
            await _end_of_call()
        return answer

    def send(self, message: Message) -> None:
        """Send a message, unless a fault loses the answer."""
        if self._is_answer_lost:
            return
        asked, status = self._asked, getattr(message, "status", None)
        if asked is not None and asked.answer is None and status is not None:
            asked.answer, asked.remark = status.code, status.message
        super().send(message)

    def release(self) -> None:
        """Stop all work for the call."""
        super().release()
        self._gate.arrived()


async def _end_of_call() -> None:
    """Wait until the end of the call cancels this wait: the client gets no answer before the deadline."""
    await asyncio.get_running_loop().create_future()


def _fields(message: Message) -> dict[str, Any]:
    """Return the topic and the group of a message, as a header of remoting names both."""
    first = (getattr(message, "messages", None) or [message])[0]
    queue = getattr(first, "message_queue", None)
    topic = getattr(first, "topic", None) or getattr(queue, "topic", None)
    group = getattr(message, "group", None)
    named = {"topic": topic, "consumerGroup": group}
    return {name: resource.full_name for name, resource in named.items() if resource is not None}


def _body(message: Message) -> bytes:
    """Return the body of the first message to be sent."""
    messages = getattr(message, "messages", None)
    return bytes(messages[0].body) if messages else b""

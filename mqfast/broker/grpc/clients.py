"""The clients of gRPC as channels: handlers of remoting serve, register and call back a client as any other.

A client is an account with a client id; several connections may carry its calls. Requests pass the table of remoting
with the signature of the account, so that access control is the same on both protocols. No call is served for a
signature that is wrong. Source: ClientProcessor, GrpcClientChannel, AuthenticationHeader.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.grpc.codes import Code, Refused
from mqfast.broker.grpc.outgoing import message_of_record
from mqfast.errors import CallTimeout, ConnectionLost
from mqfast.grpc.connection import Call
from mqfast.grpc.messages import (
    GrpcMessage,
    Message,
    Nonce,
    RecoverOrphanedTransactionCommand,
    Resource,
    Settings,
    TelemetryCommand,
    VerifyMessageCommand,
)
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import LanguageCode, RequestCode
from mqfast.remoting.command import VERSION, Buffer, RemotingCommand
from mqfast.remoting.signature import sign

if TYPE_CHECKING:
    from mqfast.broker.acl.required_permissions import Need
    from mqfast.broker.context import BrokerContext
    from mqfast.remoting.processors import Processors

__all__ = ["GrpcClient", "GrpcClients", "transaction_id"]

_AUTHORIZATION: Final = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=([^,/ ]+)(?:/[^,]*)?, *SignedHeaders=[^,]*, *Signature=([0-9A-Fa-f]+)"
)
_CLIENT_ID_MAX: Final = 255
_CLIENTS_MAX: Final = 1000
"""Client ids of one connection."""
_UNSENT_MAX: Final = 8 << 20
_LANGUAGES: Final = {"GOLANG": "GO", "C_PLUS_PLUS": "CPP", "DOT_NET": "DOTNET", "NODEJS": "NODE_JS"}


def transaction_id(physical_offset: int, queue_offset: int, message_id: str) -> str:
    """Return the id by which a client ends a transaction: the place of the half message, and the message id.

    The id needs no memory of the broker, and is valid after a restart. EndTransaction checks every part.
    """
    return f"{physical_offset:X}-{queue_offset:X}-{message_id}"


class GrpcClient(Channel):
    """A client, as handlers of remoting see their peer. No connection of its own: calls and Telemetry have theirs.

    Attributes: ``client_id``; ``account``: the access key, empty without a signature; ``key``: in the table of clients;
        ``settings``: of the last Telemetry; ``await_ms``: the wait of a simple consumer by its own settings;
        ``telemetry``: the open stream; ``connections``: those that carried calls, and are open.
    """

    def __init__(self, context: BrokerContext, processors: Processors, client_id: str, account: str) -> None:
        # The connection of Channel is not set up: every method that would use it is overridden.
        self._broker = context
        self._processors = processors
        self._answers: dict[int, RemotingCommand | asyncio.Future[RemotingCommand] | None] = {}
        self._nonces: dict[str, asyncio.Future[TelemetryCommand]] = {}
        self._held: set[asyncio.Future[RemotingCommand]] = set()
        self._opaque = 0
        self.secret: str | None = None
        self.client_id: Final = client_id
        self.account: Final = account
        self.key: tuple[str, ...] = ()
        self.language: int = LanguageCode.OTHER
        self.settings: Settings | None = None
        self.await_ms: int | None = None
        self.telemetry: Call | None = None
        self.connections: dict[Channel, None] = {}
        self.peer = self.socket_peer = ("", 0)
        self.owner = None
        self.is_closed = False
        self.on_close: Callable[[GrpcClient], None] = lambda _: None

    @property
    def is_tls(self) -> bool:
        """Return whether the latest connection is encrypted."""
        return any(connection.is_tls for connection in self.connections)

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes that the client has not read on its Telemetry."""
        return 0 if self.telemetry is None else self.telemetry.unsent_bytes

    @property
    def is_usable(self) -> bool:
        """Return whether commands can be sent."""
        return not self.is_closed and self.telemetry is not None

    def used_by(self, call: Call) -> None:
        """Note the connection of a call."""
        connection = call.channel
        if connection not in self.connections:
            self.connections[connection] = None
            self.peer, self.socket_peer = connection.peer, connection.socket_peer
            name = call.headers.get("x-mq-language", "").upper()
            name = _LANGUAGES.get(name, name)
            self.language = LanguageCode[name] if name in LanguageCode.__members__ else LanguageCode.OTHER

    # --- requests to handlers ---

    def command(self, code: int, fields: dict[str, Any], body: bytes | Sequence[Buffer] = b"") -> RemotingCommand:
        """Return a request of this client, signed where the client has signed its call."""
        if self.secret is not None:
            fields = sign(fields, body, self.account, self.secret)
        self._opaque += 1
        return RemotingCommand(code, fields, body, opaque=self._opaque, language=self.language, version=VERSION)

    def dispatch(
        self, code: int, fields: dict[str, Any], body: bytes | Sequence[Buffer] = b""
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        """Serve a request by the handlers of remoting. Returns: the response, or its future."""
        command = self.command(code, fields, body)
        command.received_s = time.monotonic()
        opaque = command.opaque
        self._answers[opaque] = None
        self._processors.dispatch(self, command)
        answer = self._answers.pop(opaque)
        if isinstance(answer, RemotingCommand):
            return answer
        future: asyncio.Future[RemotingCommand] = self._broker.loop.create_future()
        self._answers[opaque] = future
        future.add_done_callback(lambda _: self._answers.pop(opaque, None))
        return future

    async def request(self, code: int, fields: dict[str, Any], body: bytes | Sequence[Buffer] = b"") -> RemotingCommand:
        """Serve a request by the handlers of remoting, and await the response."""
        answer = self.dispatch(code, fields, body)
        return answer if isinstance(answer, RemotingCommand) else await answer

    async def request_held(self, code: int, fields: dict[str, Any]) -> RemotingCommand:
        """Serve a request that a handler may hold, and drops when the client ends. Raises: ConnectionLost then."""
        if self.is_closed:
            raise self._lost()
        answer = self.dispatch(code, fields)
        if isinstance(answer, RemotingCommand):
            return answer
        self._held.add(answer)
        try:
            return await answer
        finally:
            self._held.discard(answer)

    def admit(self, *needs: Need) -> None:
        """Check that the account of this client may do all of this. Raises: CallRefused."""
        rights = self._broker.rights
        if rights.compares:
            rights.admit(self, self.command(0, {}), *needs)

    def answer(self, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        """Take the response of a handler."""
        latencies = self._broker.latencies
        if latencies is not None and answer is not None:
            latencies.note(request, answer.code, time.monotonic(), not self.is_closed)
        if answer is None or request.opaque not in self._answers:
            return
        waiting = self._answers[request.opaque]
        if isinstance(waiting, asyncio.Future):
            if not waiting.done():
                waiting.set_result(answer)
        else:
            self._answers[request.opaque] = answer

    # --- requests of handlers to the client ---

    def oneway(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        serialize: int | None = None,
    ) -> None:
        """Send what Telemetry can carry: the check of a transaction. Other notices concern remoting clients."""
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            self._check_transaction(ext_fields or {}, _joined(body))

    def _check_transaction(self, fields: dict[str, Any], record: bytes) -> None:
        message = self._message(record)
        assert message.system_properties is not None
        name = transaction_id(
            int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"]), message.system_properties.message_id
        )
        self.send_command(TelemetryCommand(
            recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(message, name)
        ))  # fmt: skip

    def _message(self, record: bytes) -> GrpcMessage:
        """Return the message of a record, with the topic as the client's settings name the topic.

        SDKs answer with the name of the topic in their own namespace.
        """
        message = message_of_record(record, self._broker)
        name = "" if message.topic is None else message.topic.full_name
        message.topic = next((topic for topic in self._topics() if topic.full_name == name), message.topic)
        return message

    def _topics(self) -> list[Resource]:
        """Return the topics of the client's settings."""
        settings = self.settings
        if settings is None:
            return []
        if settings.publishing is not None:
            return settings.publishing.topics
        entries = [] if settings.subscription is None else settings.subscription.subscriptions
        return [entry.topic for entry in entries if entry.topic is not None]

    async def call(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        timeout_ms: int = 3000,
        serialize: int | None = None,
        version: int = VERSION,
    ) -> RemotingCommand:
        """Ask the client by Telemetry: for its stacks (307), or to consume a message (309).

        Raises: CallTimeout; ConnectionLost without Telemetry, and for codes that the API does not have.
        """
        nonce = secrets.token_hex(8)
        if code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            command = TelemetryCommand(print_thread_stack_trace_command=Nonce(nonce))
        elif code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            message = self._message(_joined(body))
            command = TelemetryCommand(verify_message_command=VerifyMessageCommand(nonce, message))
        else:
            raise ConnectionLost(f"client {self.client_id}: a gRPC client cannot be asked by code {code}")
        if not self.is_usable:
            raise ConnectionLost(f"client {self.client_id} has no Telemetry open")
        future: asyncio.Future[TelemetryCommand] = self._broker.loop.create_future()
        self._nonces[nonce] = future
        started_ms = self._broker.now_ms()
        try:
            self.send_command(command)
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await future
        except TimeoutError:
            raise CallTimeout(f"client {self.client_id}: no answer to command {code} in time") from None
        finally:
            self._nonces.pop(nonce, None)
        status = answer.status
        is_done = status is None or status.code == Code.OK
        reply: dict[str, Any]
        if answer.thread_stack_trace is not None:
            reply = {"jstack": answer.thread_stack_trace.thread_stack_trace or ""}
        else:
            reply = {
                "consumeResult": "CR_SUCCESS" if is_done else "CR_LATER",
                "remark": "" if status is None else status.message,
                "spentTimeMills": self._broker.now_ms() - started_ms,
            }
        return RemotingCommand(0, {}, encode_body(reply), flag=1)

    def answered(self, nonce: str, command: TelemetryCommand) -> None:
        """Take the client's answer to a command; an unknown number is ignored."""
        future = self._nonces.get(nonce)
        if future is not None and not future.done():
            future.set_result(command)

    def send_command(self, message: Message) -> None:
        """Send a command; without Telemetry, or if the client does not read: nothing."""
        if self.telemetry is not None and self.telemetry.unsent_bytes < _UNSENT_MAX:
            self.telemetry.send(message)

    def close(self) -> None:
        """End the client: no heartbeat came for long, or its connections have ended."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.telemetry is not None:
            self.telemetry.finish()
        waiting: list[asyncio.Future[Any]] = [*self._nonces.values(), *self._held]  # other requests are answered
        for future in waiting:
            if not future.done():
                future.set_exception(self._lost())
        self.on_close(self)

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(f"client {self.client_id} has ended")

    def abort(self) -> None:
        """End the client."""
        self.close()


class GrpcClients:
    """All clients, by account and client id, and with access control also by host.

    Args: on_closed: called with a client that has ended.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext, processors: Processors, on_closed: Callable[[GrpcClient], None]) -> None:
        self._context = context
        self._processors = processors
        self._on_closed = on_closed
        self._clients: dict[tuple[str, ...], GrpcClient] = {}
        self._of_connection: dict[Channel, dict[GrpcClient, None]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def of(self, call: Call) -> GrpcClient:
        """Return the client of a call. Raises: Refused without a client id, and for a wrong signature."""
        client_id = call.headers.get("x-mq-client-id", "")
        if not client_id.strip() or len(client_id) > _CLIENT_ID_MAX:
            raise Refused(
                Code.CLIENT_ID_REQUIRED,
                f"x-mq-client-id: expected 1 to {_CLIENT_ID_MAX} characters, found {len(client_id)}",
            )
        account, secret = self._signer(call)
        key = self._key(call.channel, account, client_id)
        client = self._clients.get(key)
        known = self._of_connection.setdefault(call.channel, {})
        if client is None:
            if len(known) >= _CLIENTS_MAX:
                raise Refused(Code.TOO_MANY_REQUESTS, f"expected at most {_CLIENTS_MAX} client ids of a connection")
            client = GrpcClient(self._context, self._processors, client_id, account)
            client.key = key
            client.on_close = self._closed
            self._clients[key] = client
        client.secret = secret
        if client not in known:
            known[client] = None
            client.used_by(call)
        return client

    def _key(self, connection: Channel, account: str, client_id: str) -> tuple[str, ...]:
        """Return the identity of a client. With access control a host is a part, because rights depend on hosts."""
        if not self._context.rights.compares:
            return account, client_id
        return account, client_id, connection.peer[0], connection.socket_peer[0]

    def _signer(self, call: Call) -> tuple[str, str | None]:
        """Return account and secret of a signed call; without access control, or a signature: no account."""
        rights, text = self._context.rights, call.headers.get("authorization")
        if not rights.compares or text is None:
            return "", None
        fields = _AUTHORIZATION.match(text)
        signed = call.headers.get("x-mq-date-time", "")
        secret = None if fields is None else rights.secret_of(fields[1])
        if fields is None or secret is None:
            raise Refused(Code.UNAUTHORIZED, "authorization: expected MQv2-HMAC-SHA1 of a known access key")
        wanted = hmac.new(secret.encode(), signed.encode("utf-8", "replace"), "sha1").hexdigest()
        if not signed or not hmac.compare_digest(wanted, fields[2].lower()):
            raise Refused(Code.UNAUTHORIZED, "authorization: the signature of x-mq-date-time is wrong")
        return fields[1], secret

    def connection_ended(self, connection: Channel) -> None:
        """Remove the clients that had this connection alone."""
        for client in self._of_connection.pop(connection, {}):
            client.connections.pop(connection, None)
            if not client.connections:
                client.close()

    def _closed(self, client: GrpcClient) -> None:
        self._clients.pop(client.key, None)
        for connection in client.connections:
            self._of_connection.get(connection, {}).pop(client, None)
        self._on_closed(client)

    def close(self) -> None:
        """End all clients."""
        for client in list(self._clients.values()):
            client.close()


def _joined(body: bytes | Iterable[Buffer]) -> bytes:
    return body if isinstance(body, bytes) else b"".join(map(bytes, body))

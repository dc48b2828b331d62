"""A small gRPC client over a socket, for tests of the server: calls by path, with messages of the API."""

from __future__ import annotations

import hmac
import socket
import ssl
from collections.abc import Iterator
from typing import Any, TypeVar

from mqfast.grpc import http2
from mqfast.grpc.messages import Message, decode, encode

__all__ = ["GrpcClient", "GrpcFailure", "Stream"]

SERVICE = "/apache.rocketmq.v2.MessagingService/"
M = TypeVar("M", bound=Message)


class GrpcFailure(Exception):
    """A call ended with a status of gRPC other than OK, which is the first argument."""


class Stream:
    """An open call."""

    def __init__(self, client: GrpcClient, stream: http2.Stream) -> None:
        self._client = client
        self.stream = stream
        self.messages: list[bytes] = []
        self.is_closed = False
        self.error_code = 0

    def send(self, message: Message) -> None:
        """Send a message."""
        self._client.session.write(self.stream, encode(message))
        self._client.flush()

    def end(self) -> None:
        """Send no more."""
        self._client.session.end_request(self.stream)
        self._client.flush()

    def cancel(self) -> None:
        """Reset the call."""
        self._client.session.reset(self.stream, 8)
        self._client.flush()

    def next(self, kind: type[M]) -> M | None:
        """Return the next message, None at the end. Raises: GrpcFailure."""
        while not self.messages and not self.is_closed:
            self._client.receive()
        if self.messages:
            return decode(kind, self.messages.pop(0))
        self.check()
        return None

    def check(self) -> None:
        """Raise GrpcFailure unless the call ended with OK."""
        status = self.stream.trailers.get("grpc-status", self.stream.headers.get("grpc-status"))
        if status != "0":
            text = self.stream.trailers.get("grpc-message", self.stream.headers.get("grpc-message", ""))
            raise GrpcFailure(-1 if status is None else int(status), text, self.error_code)


class GrpcClient:
    """A connection; ``headers``: of each call; ``window_bytes``: of each call's answer, until the client reads."""

    def __init__(
        self,
        address: str,
        client_id: str = "test-client",
        *,
        key: str = "",
        secret: str = "",
        context: ssl.SSLContext | None = None,
        window_bytes: int = 1 << 20,
        **headers: str,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket: socket.socket = socket.create_connection((host, int(port)), timeout=10)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=host)
        self.session = http2.Http2Session(is_server=False, message_bytes_max=64 << 20, window_bytes=window_bytes)
        self.headers = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON", "x-mq-protocol": "v2", **headers}
        if key:
            date = "20261128T120000Z"
            signature = hmac.new(secret.encode(), date.encode(), "sha1").hexdigest().upper()
            self.headers["x-mq-date-time"] = date
            self.headers["authorization"] = (
                f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
            )
        self.streams: dict[int, Stream] = {}

    def open(self, name: str, **more: str) -> Stream:
        """Open a call of a method."""
        path = name if name.startswith("/") else SERVICE + name
        pairs = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "test",
            "content-type": "application/grpc",
            "te": "trailers",
            **self.headers,
            **{header.replace("_", "-"): value for header, value in more.items()},
        }
        stream = self.session.request([(name.encode(), value.encode()) for name, value in pairs.items()])
        opened = self.streams[stream.id] = Stream(self, stream)
        return opened

    def call(self, name: str, request: Message, kind: type[M], **more: str) -> M:
        """Call a unary method. Raises: GrpcFailure."""
        answers = list(self.stream(name, request, kind, **more))
        assert len(answers) == 1, answers
        return answers[0]

    def stream(self, name: str, request: Message, kind: type[M], **more: str) -> Iterator[M]:
        """Call a method with a stream of answers. Raises: GrpcFailure."""
        call = self.open(name, **more)
        call.send(request)
        call.end()
        while (message := call.next(kind)) is not None:
            yield message

    def flush(self) -> None:
        """Send what waits."""
        while parts := self.session.data_to_send(1 << 20):
            self.socket.sendall(b"".join(parts))

    def receive(self) -> None:
        """Take bytes of the server. Raises: ConnectionError at the end."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self.handle(self.session.receive(data))
        self.flush()

    def handle(self, events: list[tuple[int, http2.Stream, Any]]) -> None:
        """Take events of the session."""
        for kind, stream, value in events:
            call = self.streams.get(stream.id)
            if call is None:
                continue
            if kind == http2.MESSAGE:
                call.messages.append(value)
                stream.release()
            elif kind == http2.CLOSED:
                call.is_closed, call.error_code = True, value

    def close(self) -> None:
        """Cut the connection."""
        self.socket.close()

    def __enter__(self) -> GrpcClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

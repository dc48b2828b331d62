"""A server of a test that answers what the test says, byte for byte: ``with RawServer(answer) as one: one.address``."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from mqfast.remoting.command import FrameDecoder, RemotingCommand, encode

SEND_OK = {"msgId": "7F000001" + "0" * 24, "queueId": "0", "queueOffset": "0"}
ROUTE = (
    '{{"brokerDatas":[{{"brokerAddrs":{{"0":"{address}"}},"brokerName":"a","cluster":"c"}}],"queueDatas":'
    '[{{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}}]}}'
)


class Connection:
    """One connection: what it got, and how to send to it."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, request: RemotingCommand, code: int = 0, **more: Any) -> None:
        self.send(encode(request.response(code, dict(SEND_OK), **more)))

    def cut(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class RawServer:
    """Calls ``serve(connection, request)`` for every request, in the thread of the connection.

    It is a name server too: routes are answered with the address of ``broker``, its own at first, unless ``names``
    has answered. Attributes: connections: how many there were; routes_asked: how often.
    """

    def __init__(
        self, serve: Callable[[Connection, RemotingCommand], None], context: ssl.SSLContext | None = None
    ) -> None:
        self.serve = serve
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.broker = self.address
        self.routes_asked = 0
        self.names: Callable[[Connection, RemotingCommand], bool] = lambda one, request: False
        self.connections: list[Connection] = []
        self.requests: list[RemotingCommand] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self._context is not None:
                try:
                    sock = self._context.wrap_socket(sock, server_side=True)
                except OSError:
                    continue
            one = Connection(sock, len(self.connections))
            self.connections.append(one)
            threading.Thread(target=self._read, args=(one,), daemon=True).start()

    def _read(self, one: Connection) -> None:
        decoder = FrameDecoder()
        try:
            while data := one.sock.recv(65536):
                for request in decoder.feed(data):
                    if request.is_response:
                        self.requests.append(request)
                    elif request.code == 105:
                        self.routes_asked += 1
                        if self.names(one, request):
                            continue
                        body = ROUTE.format(address=self.broker).encode()
                        one.send(encode(request.response(0, None, body)))
                    elif request.code in (34, 35):
                        one.send(encode(request.response(0)))
                    else:
                        self.requests.append(request)
                        self.serve(one, request)
        except OSError:
            pass
        finally:
            one.sock.close()

    def close(self) -> None:
        self._listener.close()
        for one in self.connections:
            one.cut()

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

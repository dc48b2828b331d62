"""etcd in a simulation: the model of a linearizable cluster, the server in the network, and connections to the server.

The model answers the requests of etcd's JSON gateway that fail-over makes, with etcd's own rows and errors; a test
compares it with a real etcd. Leases end late, never early; after a change of etcd's leader all leases begin anew.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from mqfast.ha.failover.etcd import Etcd
from mqfast.sim.network import SimSocket, connect_blocking

if TYPE_CHECKING:
    import http.client

    from mqfast.sim.loop import SimLoop

__all__ = ["PORT", "EtcdModel", "EtcdProtocol", "SimEtcd"]

PORT: Final = 2379
_HEAD: Final = struct.Struct(">iI")
_NOT_FOUND: Final = 5
_OUT_OF_RANGE: Final = 11
_FIRST_LEASE: Final = 7_587_000_000_000_000_000


class _Row(NamedTuple):
    value: bytes
    created: int
    modified: int
    version: int
    lease: int


class EtcdError(Exception):
    """An error response. ``code``: of gRPC; ``status``: of HTTP."""

    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


class EtcdModel:
    """Keys, revisions and leases. Args: now_s: the clock that ends leases."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s: Final = now_s
        self._revision = 1
        self._rows: dict[str, _Row] = {}
        self._past: dict[int, dict[str, _Row]] = {1: {}}
        self._leases: dict[int, tuple[int, float]] = {}  # seconds, end
        self._next_lease = _FIRST_LEASE

    def answer(self, path: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the HTTP status and the response."""
        self._end_leases()
        try:
            return 200, self._calls[path](self, request)
        except EtcdError as error:
            return error.status, {"error": str(error), "message": str(error), "code": error.code}

    # -- what happens to a cluster -------------------------------------------------------------------------------------

    def change_leader(self) -> None:
        """Let another member lead: all leases begin anew."""
        self._end_leases()
        now_s = self._now_s()
        self._leases = {lease: (ttl_s, now_s + ttl_s) for lease, (ttl_s, _) in self._leases.items()}

    def lose_data(self) -> None:
        """Begin without any key, as new members do. Ids of leases do not come again: etcd makes ids of the time."""
        self._revision, self._rows, self._past, self._leases = 1, {}, {1: {}}, {}

    def copy(self) -> tuple[Any, ...]:
        """Return a backup."""
        return self._revision, dict(self._rows), dict(self._past), dict(self._leases)

    def restore(self, copy: tuple[Any, ...]) -> None:
        """Replace all data by a backup; the leases begin anew."""
        self._revision, rows, past, leases = copy
        self._rows, self._past, self._leases = dict(rows), dict(past), dict(leases)
        self.change_leader()

    def value(self, key: str) -> bytes | None:
        """Return the value of a key."""
        self._end_leases()
        row = self._rows.get(key)
        return None if row is None else row.value

    # -- requests ------------------------------------------------------------------------------------------------------

    def _end_leases(self) -> None:
        now_s = self._now_s()
        for lease in [lease for lease, (_, end_s) in self._leases.items() if end_s <= now_s]:
            self._remove_lease(lease)

    def _remove_lease(self, lease: int) -> None:
        del self._leases[lease]
        gone = sorted(key for key, row in self._rows.items() if row.lease == lease)
        if gone:
            self._revision += 1
            for key in gone:
                del self._rows[key]
            self._past[self._revision] = dict(self._rows)

    def _header(self) -> dict[str, str]:
        return {"revision": str(self._revision)}

    def _range(self, request: dict[str, Any]) -> dict[str, Any]:
        key, end = _bytes(request["key"]).decode(), _bytes(request.get("range_end", "")).decode()
        revision = int(request.get("revision", 0))
        if revision > self._revision:
            raise EtcdError(400, _OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")
        rows = self._rows
        if revision:
            rows = self._past[max(known for known in self._past if known <= revision)]
        names = sorted(name for name in rows if (key <= name < end if end else name == key))
        answer: dict[str, Any] = {"header": self._header()}
        if names:
            answer["kvs"] = [_row(name, rows[name]) for name in names]
            answer["count"] = str(len(names))
        return answer

    def _txn(self, request: dict[str, Any]) -> dict[str, Any]:
        for compare in request.get("compare", ()):
            row = self._rows.get(_bytes(compare["key"]).decode())
            of_change = compare["target"] == "MOD"
            revision = 0 if row is None else row.modified if of_change else row.created
            if revision != int(compare["mod_revision" if of_change else "create_revision"]):
                return {"header": self._header()}
        operations = request.get("success", ())
        puts = [operation["request_put"] for operation in operations if "request_put" in operation]
        for put in puts:
            if (lease := int(put.get("lease", 0))) and lease not in self._leases:
                raise EtcdError(404, _NOT_FOUND, "etcdserver: requested lease not found")
        if puts:
            self._revision += 1
        responses = []
        for operation in operations:
            if "request_put" in operation:
                put = operation["request_put"]
                key, before = _bytes(put["key"]).decode(), self._rows.get(_bytes(put["key"]).decode())
                created = self._revision if before is None else before.created
                version = 1 if before is None else before.version + 1
                lease = int(put.get("lease", 0))
                self._rows[key] = _Row(_bytes(put.get("value", "")), created, self._revision, version, lease)
                responses.append({"response_put": {"header": self._header()}})
            else:
                responses.append({"response_range": self._range(operation["request_range"])})
        if puts:
            self._past[self._revision] = dict(self._rows)
        return {"header": self._header(), "succeeded": True, "responses": responses}

    def _grant(self, request: dict[str, Any]) -> dict[str, Any]:
        self._next_lease += 1
        ttl_s = int(request["TTL"])
        self._leases[self._next_lease] = ttl_s, self._now_s() + ttl_s
        return {"header": self._header(), "ID": str(self._next_lease), "TTL": str(ttl_s)}

    def _keep_alive(self, request: dict[str, Any]) -> dict[str, Any]:
        lease = int(request["ID"])
        result = {"header": self._header(), "ID": str(lease)}
        if lease in self._leases:
            ttl_s = self._leases[lease][0]
            self._leases[lease] = ttl_s, self._now_s() + ttl_s
            result["TTL"] = str(ttl_s)
        return {"result": result}

    def _revoke(self, request: dict[str, Any]) -> dict[str, Any]:
        lease = int(request["ID"])
        if lease not in self._leases:
            raise EtcdError(404, _NOT_FOUND, "etcdserver: requested lease not found")
        self._remove_lease(lease)
        return {"header": self._header()}

    _calls: Final[dict[str, Callable[[EtcdModel, dict[str, Any]], dict[str, Any]]]] = {
        "/v3/kv/txn": _txn,
        "/v3/kv/range": _range,
        "/v3/lease/grant": _grant,
        "/v3/lease/keepalive": _keep_alive,
        "/v3/lease/revoke": _revoke,
    }


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _row(name: str, row: _Row) -> dict[str, str]:
    answer = {
        "key": base64.b64encode(name.encode()).decode(),
        "create_revision": str(row.created),
        "mod_revision": str(row.modified),
        "version": str(row.version),
    }
    if row.value:
        answer["value"] = base64.b64encode(row.value).decode()
    if row.lease:
        answer["lease"] = str(row.lease)
    return answer


class EtcdProtocol(asyncio.Protocol):
    """A connection of the server: frames of status or length of the path, length, content."""

    def __init__(self, model: EtcdModel) -> None:
        self._model: Final = model
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer every whole request."""
        assert self._transport is not None
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            path_bytes, size = _HEAD.unpack_from(self._buffer)
            if len(self._buffer) < _HEAD.size + size:
                return
            content, self._buffer = self._buffer[_HEAD.size : _HEAD.size + size], self._buffer[_HEAD.size + size :]
            status, answer = self._model.answer(content[:path_bytes].decode(), json.loads(content[path_bytes:]))
            body = json.dumps(answer).encode()
            self._transport.write(_HEAD.pack(status, len(body)) + body)


class _Response:
    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self._body = body

    def read(self) -> bytes:
        return self._body

    def __enter__(self) -> _Response:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Connection:
    """A connection with the face of ``http.client.HTTPConnection``."""

    def __init__(self, socket: SimSocket) -> None:
        self._socket: Final = socket
        self._buffer = b""

    def request(self, _method: str, path: str, body: bytes, _headers: object) -> None:
        self._socket.sendall(_HEAD.pack(len(path), len(path) + len(body)) + path.encode() + body)

    def getresponse(self) -> _Response:
        status, size = _HEAD.unpack(self._read(_HEAD.size))
        return _Response(status, self._read(size))

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
            self._buffer += data
        result, self._buffer = self._buffer[:size], self._buffer[size:]
        return result

    def close(self) -> None:
        self._socket.close()


class SimEtcd(Etcd):
    """The product's client with a connection of the simulated network; calls are made in simulated threads."""

    loop: SimLoop

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            endpoint = self._endpoints[self._at % len(self._endpoints)]
            socket = connect_blocking(self.loop.network, endpoint.hostname or "", PORT, self._timeout_s)
            socket.settimeout(self._timeout_s)
            self._connection = cast("http.client.HTTPConnection", _Connection(socket))
        return self._connection

"""Client for the etcd calls that fail-over needs, over the JSON gateway and the HTTP of the standard library.

Every call has a time-out and is tried at each member of the cluster in turn. A failed write may have been executed: the
caller must read again. A write that may have been executed is not repeated. Source: etcd's API v3.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from mqfast.errors import ConfigError, MqfastError

__all__ = ["Compare", "Etcd", "EtcdUnreachable", "Value", "endpoints_of", "tls_context"]

T = TypeVar("T")
_PORT: Final = 2379
_NO_ANSWER: Final = (ValueError, LookupError, TypeError, AttributeError)  # other JSON than that of etcd
_NOT_FOUND: Final = 5  # of gRPC: a lease that has ended


class EtcdUnreachable(MqfastError, ConnectionError):
    """No member of etcd answered in time, or etcd refused. A write may have happened."""


class Value(NamedTuple):
    """One key of etcd with its revisions; ``lease``: the lease that owns the key, 0 without a lease."""

    data: bytes
    created: int
    modified: int
    lease: int


class Compare(NamedTuple):
    """A condition of a transaction: the revision at which a key was created, or last modified; 0: the key does not
    exist.
    """

    key: str
    revision: int
    of_change: bool = False


class _Refused(EtcdUnreachable):
    """An error response of a member. ``code``: of gRPC."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def endpoints_of(text: str) -> list[str]:
    """Return the members of a cluster: ``host:port`` or ``https://host:port``, between semicolons or commas.

    Raises: ConfigError.
    """
    endpoints = [endpoint.strip() for endpoint in text.replace(",", ";").split(";") if endpoint.strip()]
    for endpoint in endpoints:
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        try:
            is_good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or _PORT) > 0
        except ValueError:
            is_good = False
        if not is_good or parts.path.strip("/"):
            raise ConfigError(f"haEtcdEndpoints: expected host:port or https://host:port, found {endpoint!r}")
    return endpoints


def tls_context(ca: str, certificate: str, key: str) -> ssl.SSLContext | None:
    """Return the TLS context for https members, from file names; None for the system's certificate authorities."""
    if not ca and not certificate:
        return None
    context = ssl.create_default_context(cafile=ca or None)
    if certificate:
        context.load_cert_chain(certificate, key or None)
    return context


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Etcd:
    """A client with one connection.

    Args: endpoints: from ``endpoints_of``; timeout_s: of one attempt at one member; context: for https.
    Thread: no concurrent calls. Blocks.
    """

    def __init__(self, endpoints: Sequence[str], timeout_s: float, context: ssl.SSLContext | None = None) -> None:
        self._endpoints: Final = [
            urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}") for endpoint in endpoints
        ]
        self._timeout_s: Final = timeout_s
        self._context: Final = context
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def read(self, *keys: str) -> list[Value | None]:
        """Read keys at the same moment, linearizably. Raises: EtcdUnreachable."""
        requests = [{"request_range": {"key": _text(key.encode())}} for key in keys]
        return self._call(
            "/v3/kv/txn",
            {"compare": [], "success": requests},
            lambda answer: [_value(response["response_range"]) for response in answer["responses"]],
        )

    def read_many(self, keys: Sequence[str], prefix: str) -> tuple[list[Value | None], dict[str, Value]]:
        """Read keys, and all keys with a prefix, as ``read``. Raises: EtcdUnreachable."""
        requests = [{"request_range": {"key": _text(key.encode())}} for key in keys]
        begin = prefix.encode()
        end = begin[:-1] + bytes([begin[-1] + 1])
        requests.append({"request_range": {"key": _text(begin), "range_end": _text(end)}})

        def parse(answer: dict[str, Any]) -> tuple[list[Value | None], dict[str, Value]]:
            ranges = [entry["response_range"] for entry in answer["responses"]]
            return [_value(entry) for entry in ranges[:-1]], dict(_values(ranges[-1]))

        return self._call("/v3/kv/txn", {"compare": [], "success": requests}, parse)

    def read_at(self, key: str, revision: int) -> Value | None:
        """Read a key at a revision that etcd has not compacted. Raises: EtcdUnreachable."""
        request = {"key": _text(key.encode()), "revision": str(revision)}
        return self._call("/v3/kv/range", request, _value)

    def write(self, compares: Sequence[Compare], puts: Sequence[tuple[str, bytes, int]]) -> int | None:
        """Write keys (key, data, lease) if all compares hold.

        Returns: the revision of the keys, None if a compare does not hold. Raises: EtcdUnreachable.
        """
        request = {
            "compare": [
                {
                    "key": _text(compare.key.encode()),
                    "result": "EQUAL",
                    "target": "MOD" if compare.of_change else "CREATE",
                    "mod_revision" if compare.of_change else "create_revision": str(compare.revision),
                }
                for compare in compares
            ],
            "success": [
                {"request_put": {"key": _text(key.encode()), "value": _text(data), "lease": str(lease)}}
                for key, data, lease in puts
            ],
        }
        return self._call(
            "/v3/kv/txn",
            request,
            lambda answer: int(answer["header"]["revision"]) if answer.get("succeeded") else None,
            is_write=True,
        )

    def grant(self, ttl_s: int) -> int:
        """Create a lease of ``ttl_s`` seconds. Raises: EtcdUnreachable."""
        return self._call("/v3/lease/grant", {"TTL": str(ttl_s)}, lambda answer: int(answer["ID"]))

    def keep_alive(self, lease: int) -> int:
        """Renew a lease. Returns: its seconds, 0 for an expired lease. Raises: EtcdUnreachable."""
        with contextlib.suppress(_Refused):
            return self._call(
                "/v3/lease/keepalive", {"ID": str(lease)}, lambda answer: int(answer["result"].get("TTL", 0))
            )
        return 0

    def revoke(self, lease: int) -> None:
        """Revoke a lease and delete its keys. Raises: EtcdUnreachable."""
        with contextlib.suppress(_Refused):
            self._call("/v3/lease/revoke", {"ID": str(lease)}, lambda _answer: None)

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    def _call(
        self, path: str, request: dict[str, Any], parse: Callable[[dict[str, Any]], T], *, is_write: bool = False
    ) -> T:
        """Send a request to the members in turn.

        Args: parse: returns the result of a response; a response without the result counts as a failure. is_write: a
            second attempt might do harm, so only an unreachable member is skipped.
        """
        failures: list[str] = []
        body = json.dumps(request).encode()
        for _ in range(len(self._endpoints) + 1):  # one more for a connection that was closed by the member
            endpoint = self._endpoints[self._at % len(self._endpoints)]
            try:
                is_fresh = self._connection is None
                connection = self._connected()
            except (OSError, UnicodeError) as error:  # an invalid host name
                failures.append(f"{endpoint.netloc}: {error}")
                self._next()
                continue
            try:
                return parse(self._request(connection, path, body))
            except _Refused as error:
                if error.code == _NOT_FOUND:
                    raise
                failures.append(f"{endpoint.netloc}: {error}")
            except (OSError, http.client.HTTPException, *_NO_ANSWER) as error:
                failures.append(f"{endpoint.netloc}: {str(error) or type(error).__name__}")
                # A member closes idle connections; nothing was sent on a connection that was closed before.
                if not is_fresh and isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
                    self.close()
                    continue
            self._next()
            if is_write:
                break
        raise EtcdUnreachable(
            f"etcd: expected an answer within {self._timeout_s:g} s, found none: " + "; ".join(failures)
        )

    def _next(self) -> None:
        self.close()
        self._at += 1

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            endpoint = self._endpoints[self._at % len(self._endpoints)]
            host, port = endpoint.hostname or "", endpoint.port or _PORT
            if endpoint.scheme == "https":
                context = self._context or ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            try:
                self._connection.connect()
            except BaseException:
                self.close()
                raise
        return self._connection

    @staticmethod
    def _request(connection: http.client.HTTPConnection, path: str, body: bytes) -> dict[str, Any]:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            data = response.read()
        answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ValueError(f"expected an object, found {data[:60]!r}")
        if response.status != 200 or "error" in answer:
            raise _Refused(int(answer.get("code", 0)), str(answer.get("error", f"status {response.status}")))
        return answer


def _value(range_response: dict[str, Any]) -> Value | None:
    return next((value for _, value in _values(range_response)), None)


def _values(range_response: dict[str, Any]) -> Iterator[tuple[str, Value]]:
    for row in range_response.get("kvs", ()):
        yield (
            base64.b64decode(row["key"]).decode(),
            Value(
                base64.b64decode(row.get("value", "")),
                int(row["create_revision"]),
                int(row["mod_revision"]),
                int(row.get("lease", 0)),
            ),
        )

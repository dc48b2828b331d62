"""The few calls of etcd that fail-over needs, over its JSON gateway and the standard library's HTTP.

Every call has a time-out and is tried at each member of the cluster in turn. A call that failed may have been carried
out all the same: who writes must look again.

Room: ha/failover. It must never decide anything, and never repeat a write that may have happened.
Source: etcd's API v3.
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
    """One key of etcd with its revisions; ``lease``: the key goes with this lease, 0: with none."""

    data: bytes
    created: int
    modified: int
    lease: int


class Compare(NamedTuple):
    """What must hold for a transaction: the revision at which a key was made, or changed last; 0: there is no key."""

    key: str
    revision: int
    of_change: bool = False


class _Refused(EtcdUnreachable):
    """A member answered with an error. ``code``: of gRPC."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def endpoints_of(text: str) -> list[str]:
    """The members of a cluster: ``host:port`` or ``https://host:port``, between semicolons or commas.

    Raises: ConfigError.
    """
    found = [one.strip() for one in text.replace(",", ";").split(";") if one.strip()]
    for one in found:
        parts = urlsplit(one if "://" in one else f"http://{one}")
        try:
            is_good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or _PORT) > 0
        except ValueError:
            is_good = False
        if not is_good or parts.path.strip("/"):
            raise ConfigError(f"haEtcdEndpoints: expected host:port or https://host:port, found {one!r}")
    return found


def tls_context(ca: str, certificate: str, key: str) -> ssl.SSLContext | None:
    """For members that are reached by https, from the names of files; None for the system's signers alone."""
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

    Args: endpoints: as ``endpoints_of`` gives them; timeout_s: of one attempt at one member; context: for https.
    Thread: one at a time. Blocks.
    """

    def __init__(self, endpoints: Sequence[str], timeout_s: float, context: ssl.SSLContext | None = None) -> None:
        self._endpoints: Final = [urlsplit(one if "://" in one else f"http://{one}") for one in endpoints]
        self._timeout_s: Final = timeout_s
        self._context: Final = context
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def read(self, *keys: str) -> list[Value | None]:
        """Some keys at one moment, as a majority of the members has them. Raises: EtcdUnreachable."""
        wanted = [{"request_range": {"key": _text(key.encode())}} for key in keys]
        return self._call(
            "/v3/kv/txn",
            {"compare": [], "success": wanted},
            lambda answer: [_value(one["response_range"]) for one in answer["responses"]],
        )

    def read_many(self, keys: Sequence[str], prefix: str) -> tuple[list[Value | None], dict[str, Value]]:
        """Some keys, and all keys that begin with a prefix, as ``read``. Raises: EtcdUnreachable."""
        wanted = [{"request_range": {"key": _text(key.encode())}} for key in keys]
        begin = prefix.encode()
        end = begin[:-1] + bytes([begin[-1] + 1])
        wanted.append({"request_range": {"key": _text(begin), "range_end": _text(end)}})

        def parse(answer: dict[str, Any]) -> tuple[list[Value | None], dict[str, Value]]:
            ranges = [one["response_range"] for one in answer["responses"]]
            return [_value(one) for one in ranges[:-1]], dict(_values(ranges[-1]))

        return self._call("/v3/kv/txn", {"compare": [], "success": wanted}, parse)

    def read_at(self, key: str, revision: int) -> Value | None:
        """A key as it was at a revision that etcd still has. Raises: EtcdUnreachable."""
        request = {"key": _text(key.encode()), "revision": str(revision)}
        return self._call("/v3/kv/range", request, _value)

    def write(self, compares: Sequence[Compare], puts: Sequence[tuple[str, bytes, int]]) -> int | None:
        """Write some keys (key, data, lease) if all compares hold.

        Returns: the revision of the keys, None where a compare does not hold. Raises: EtcdUnreachable.
        """
        request = {
            "compare": [
                {
                    "key": _text(one.key.encode()),
                    "result": "EQUAL",
                    "target": "MOD" if one.of_change else "CREATE",
                    "mod_revision" if one.of_change else "create_revision": str(one.revision),
                }
                for one in compares
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
        """A lease of so many seconds. Raises: EtcdUnreachable."""
        return self._call("/v3/lease/grant", {"TTL": str(ttl_s)}, lambda answer: int(answer["ID"]))

    def keep_alive(self, lease: int) -> int:
        """Begin the time of a lease anew. Returns: its seconds, 0 where it has ended. Raises: EtcdUnreachable."""
        with contextlib.suppress(_Refused):
            return self._call(
                "/v3/lease/keepalive", {"ID": str(lease)}, lambda answer: int(answer["result"].get("TTL", 0))
            )
        return 0

    def revoke(self, lease: int) -> None:
        """End a lease, and the keys that go with it. Raises: EtcdUnreachable."""
        with contextlib.suppress(_Refused):
            self._call("/v3/lease/revoke", {"ID": str(lease)}, lambda _answer: None)

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    def _call(
        self, path: str, request: dict[str, Any], parse: Callable[[dict[str, Any]], T], *, is_write: bool = False
    ) -> T:
        """Args: parse: what is wanted of an answer; one that lacks it is no answer. is_write: a second attempt might do
        harm, so only a member that cannot be reached is passed over.
        """
        failures: list[str] = []
        body = json.dumps(request).encode()
        for _ in range(len(self._endpoints) + 1):  # one more for a connection that had ended
            endpoint = self._endpoints[self._at % len(self._endpoints)]
            try:
                is_fresh = self._connection is None
                connection = self._connected()
            except (OSError, UnicodeError) as error:  # a name that is none of a host
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
                # A member ends idle connections; nothing was sent on one that was closed before.
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


def _value(found: dict[str, Any]) -> Value | None:
    return next((value for _, value in _values(found)), None)


def _values(found: dict[str, Any]) -> Iterator[tuple[str, Value]]:
    for one in found.get("kvs", ()):
        yield (
            base64.b64decode(one["key"]).decode(),
            Value(
                base64.b64decode(one.get("value", "")),
                int(one["create_revision"]),
                int(one["mod_revision"]),
                int(one.get("lease", 0)),
            ),
        )

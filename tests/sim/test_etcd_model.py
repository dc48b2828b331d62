"""The model of etcd gives the answers of a real etcd: the same random calls go to both."""

from __future__ import annotations

import base64
import json
import random
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ha.etcd_members import one_etcd

from mqfast.sim.etcd import EtcdModel

_KEYS = ("/a/leader", "/a/state", "/a/copies/1", "/a/copies/2", "/b")
_PLACES = frozenset(("revision", "create_revision", "mod_revision"))
_NAMES = frozenset(("ID", "lease"))


def _text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def _real(endpoint: str, path: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    data = json.dumps(request).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{endpoint}{path}", data), timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class _Both:
    """A real etcd and the model, with the differences that mean nothing: begin of revisions, ids of leases."""

    def __init__(self, endpoint: str) -> None:
        self.now_s = 0.0
        self._endpoint = endpoint
        self._model = EtcdModel(lambda: self.now_s)
        first = _real(endpoint, "/v3/kv/range", {"key": _text("none")})[1]
        self._ahead = int(first["header"]["revision"]) - 1
        self._leases: list[tuple[str, str]] = []

    def call(self, path: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Call both, and compare. Returns: the answer of the model."""
        mine = self._model.answer(path, request)
        theirs = _real(self._endpoint, path, self._translated(request))
        if path == "/v3/lease/grant":
            self._leases.append((mine[1]["ID"], theirs[1]["ID"]))
        assert mine[0] == theirs[0], (path, request, mine, theirs)
        assert mine[1] == self._plain(theirs[1]), (path, request, mine, theirs)
        return mine

    def _translated(self, value: Any) -> Any:
        ids = dict(self._leases)
        if isinstance(value, dict):
            return {
                name: ids.get(entry, entry)
                if name in _NAMES
                else str(int(entry) + self._ahead)
                if name in _PLACES and entry not in ("0", 0)
                else self._translated(entry)
                for name, entry in value.items()
            }
        return [self._translated(entry) for entry in value] if isinstance(value, list) else value

    def _plain(self, value: Any) -> Any:
        ids = {real: own for own, real in self._leases}
        if isinstance(value, dict):
            return {
                name: ids.get(entry, entry)
                if name in _NAMES
                else str(int(entry) - self._ahead)
                if name in _PLACES
                else self._plain(entry)
                for name, entry in value.items()
                if name not in ("cluster_id", "member_id", "raft_term")
            }
        return [self._plain(entry) for entry in value] if isinstance(value, list) else value

    def sleep(self, seconds: float) -> None:
        """Let the time of both pass."""
        time.sleep(seconds)
        self.now_s += seconds


def _request(rng: random.Random, leases: list[str], revisions: list[int]) -> tuple[str, dict[str, Any]]:
    key = _text(rng.choice(_KEYS))
    lease = rng.choice([*leases, "12345"])
    kind = rng.randrange(6)
    if kind == 0:
        return "/v3/kv/txn", {
            "compare": [],
            "success": [
                {"request_range": {"key": key}},
                {"request_range": {"key": _text("/a/"), "range_end": _text("/a0")}},
            ],
        }
    if kind in (1, 2):
        is_mod, revision = rng.random() < 0.5, str(rng.choice([0, 0, *revisions[-3:]]))
        compare = {
            "key": key, "result": "EQUAL", "target": "MOD" if is_mod else "CREATE",
            "mod_revision" if is_mod else "create_revision": revision,
        }  # fmt: skip
        puts = [
            {"request_put": {"key": entry, "value": _text(str(rng.random())), "lease": rng.choice(["0", lease])}}
            for entry in {key, _text("/b")}
        ]
        return "/v3/kv/txn", {"compare": [compare] if rng.random() < 0.7 else [], "success": puts}
    if kind == 3:
        return "/v3/kv/range", {"key": key, "revision": str(rng.choice([*revisions[-3:], 1000]))}
    if kind == 4:
        return "/v3/lease/keepalive", {"ID": lease}
    return "/v3/lease/revoke", {"ID": lease}


@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd")
def test_the_model_answers_as_etcd(tmp_path: Path) -> None:
    rng = random.Random(5)
    with one_etcd(tmp_path) as etcd:
        both = _Both(etcd.endpoint.removeprefix("http://"))
        leases: list[str] = []
        revisions = [1]
        for _ in range(400):
            if rng.random() < 0.1:
                leases.append(both.call("/v3/lease/grant", {"TTL": "600"})[1]["ID"])
                continue
            _, answer = both.call(*_request(rng, leases[-3:], revisions))
            if "header" in answer:
                revisions.append(int(answer["header"]["revision"]))


@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd")
def test_a_lease_that_ends_removes_its_keys(tmp_path: Path) -> None:
    with one_etcd(tmp_path) as etcd:
        both = _Both(etcd.endpoint.removeprefix("http://"))
        lease = both.call("/v3/lease/grant", {"TTL": "2"})[1]["ID"]
        put = {"request_put": {"key": _text("/a/leader"), "value": _text("x"), "lease": lease}}
        both.call("/v3/kv/txn", {"compare": [], "success": [put]})
        both.call("/v3/kv/range", {"key": _text("/a/leader")})
        both.now_s += 10
        for _ in range(200):  # a real etcd ends leases late
            if (
                "kvs"
                not in _real(etcd.endpoint.removeprefix("http://"), "/v3/kv/range", {"key": _text("/a/leader")})[1]
            ):
                break
            time.sleep(0.1)
        both.call("/v3/kv/range", {"key": _text("/a/leader")})
        both.call("/v3/lease/keepalive", {"ID": lease})


def test_a_new_leader_of_etcd_lets_leases_begin_anew() -> None:
    now_s = [0.0]
    model = EtcdModel(lambda: now_s[0])
    lease = model.answer("/v3/lease/grant", {"TTL": "2"})[1]["ID"]
    now_s[0] = 1.5
    model.change_leader()
    now_s[0] = 3.0
    assert model.answer("/v3/lease/keepalive", {"ID": lease})[1]["result"]["TTL"] == "2"

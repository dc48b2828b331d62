"""Requests that anybody may have made, on one connection of a running broker, beside a client that behaves.

An input is a list of requests, separated by 0x1e. A request is its code in decimal, then fields ``name=value``, each
behind 0x1f, then 0x1d and the body. The fields ``~oneway`` and ``~binary`` say how it is sent. A code that is not
served stands for one that is.

Room: tests/fuzz. What must hold for any input: each request is answered with a code, unless it is one-way or waits as a
pull does; the connection stays; nothing is logged with a traceback; no pull of a closed connection is kept; the other
client's message is stored and read; the tables can be read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import random
import secrets
import shutil
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from running import broker_config

from mqfast.broker.server import Broker
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import JSON, ROCKETMQ, FrameDecoder, RemotingCommand, encode
from mqfast.store.meta.tables import ConfigTables

__all__ = ["FuzzedBroker", "Request", "pack", "unpack", "vary"]

SETTINGS: Final = {
    "enablePropertyFilter": True, "recallMessageEnable": True, "brokerFastFailureEnable": False,
    "rocketmqHome": "/nowhere",
}  # fmt: skip
_NEXT, _FIELD, _BODY = b"\x1e", b"\x1f", b"\x1d"
_WAITS: Final = frozenset({11, 361, 37, 200050, 200054})  # pulls are held, the end of a transaction may have no answer
_BARRIER: Final = 32_000  # no code of RocketMQ: answered at once
_DEADLINE_S: Final = 60
_INPUTS_PER_BROKER: Final = 2000
_T = TypeVar("_T")


class Request(NamedTuple):
    """One request of an input."""

    code: int
    fields: dict[str, str]
    body: bytes = b""
    is_oneway: bool = False
    is_binary: bool = False


def pack(requests: Iterable[Request]) -> bytes:
    """The input that stands for these requests."""
    packed = []
    for one in requests:
        fields = [f"{name}={value}" for name, value in one.fields.items()]
        fields += ["~oneway="] * one.is_oneway + ["~binary="] * one.is_binary
        texts = (field.encode("utf-8", "surrogatepass") for field in fields)
        packed.append(_FIELD.join([b"%d" % one.code, *texts]) + _BODY + one.body)
    return _NEXT.join(packed)


def unpack(data: bytes, served: list[int] | None = None) -> list[Request]:
    """The requests of any bytes. Args: served: the codes that a broker serves; None: every code stands for itself."""
    found = []
    for part in data.split(_NEXT):
        head, _, body = part.partition(_BODY)
        digits, *fields = head.split(_FIELD)
        number = int(digits) if digits.isdigit() and len(digits) < 10 else sum(digits)
        pairs = dict(_text(field).partition("=")[::2] for field in fields)
        is_oneway, is_binary = pairs.pop("~oneway", None) is not None, pairs.pop("~binary", None) is not None
        code = number if served is None or number in served else served[number % len(served)]
        found.append(Request(code, pairs, body, is_oneway, is_binary))
    return found


VALUES: Final = (
    "", " ", "-1", "0", "1", "x", "1e9", "99999", "2147483647", "2147483648", "-2147483648", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "true", "null", "..", "../../x", "a/b", "T\0", "@", "a@b",
    "%RETRY%g", "%DLQ%g", "T", "g", "p", "c@1", "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC",
    "SQL92", "é", "\ud800", "\U0001f600",
    "TIMER_DELAY_SEC\x015\x02", "DELAY\x013\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02", "\x01", "a\x01b", "x" * 3000,
)  # fmt: skip
_LEAVES: Final = (
    None,
    True,
    -1,
    2**31,
    2**63,
    10**400,
    1.5,
    "",
    "x",
    "../x",
    [],
    {},
    [None],
    [[]],
    {"a": None},
    "T" * 300,
)


def vary(rng: random.Random, pool: list[bytes]) -> bytes:
    """An input of the pool but for some of its fields, and places of bodies that are JSON; or with bodies of others."""
    others = unpack(rng.choice(pool))
    found = []
    for one in unpack(rng.choice(pool)):
        fields, body = dict(one.fields), one.body
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            name = rng.choice([*(fields or ("topic",)), *rng.choice(others).fields, "topic"])
            if rng.random() < 0.2:
                fields.pop(name, None)
            else:
                fields[name] = rng.choice(VALUES)
        kind = rng.random()
        if kind < 0.3 and body[:1] in (b"{", b"["):
            with contextlib.suppress(ValueError, RecursionError):
                body = json.dumps(_vary_json(rng, json.loads(body))).encode()
        elif kind < 0.4:
            body = rng.choice((b"", b"{", b"null", b"[" * 5000, b"{}", b"\xff" * 40, rng.choice(others).body))
        found.append(one._replace(fields=fields, body=body, is_binary=rng.random() < 0.1))
    if rng.random() < 0.3:
        found.insert(rng.randrange(len(found) + 1), rng.choice(others))
    return pack(found)


def _vary_json(rng: random.Random, value: Any) -> Any:
    if rng.random() < 0.15 or not value or not isinstance(value, dict | list):
        return rng.choice(_LEAVES)
    if isinstance(value, dict):
        name = rng.choice(list(value))
        changed = {**value, name: _vary_json(rng, value[name])}
        if rng.random() < 0.1:
            del changed[name]
        return changed
    at = rng.randrange(len(value))
    return [*value[:at], _vary_json(rng, value[at]), *value[at + 1 :]]


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


class _Tracebacks(logging.Handler):
    """Keeps what was logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.found.append(logging.Formatter().format(record))


class FuzzedBroker:
    """A broker in an event loop that runs while an input is taken.

    Attributes: ``broker``; ``is_worn``: an input has changed its settings, or there were many: take another one.
    """

    def __init__(self, root: str) -> None:
        shutil.rmtree(root, ignore_errors=True)
        self._topic = f"good-{secrets.token_hex(4)}"  # no input can name it
        self._log = _Tracebacks()
        logging.disable(logging.NOTSET)
        logging.getLogger("mqfast").addHandler(self._log)
        self._propagates, logging.getLogger("mqfast").propagate = logging.getLogger("mqfast").propagate, False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._log.found.append(repr(context)))
        self.broker = Broker(broker_config(Path(root), **SETTINGS))
        self._run(self.broker.start())
        self._client = self._run(_made(RemotingClient))
        self._offset = 0
        self._opaque = itertools.count(1)
        self._inputs = 0
        self._settings = self.broker.config.text()
        self.served = sorted(self.broker.processors.codes)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run_until_complete(asyncio.wait_for(work, _DEADLINE_S))

    @property
    def is_worn(self) -> bool:
        return self._inputs > _INPUTS_PER_BROKER or self.broker.config.text() != self._settings

    def end(self) -> None:
        """Stop it; what the inputs left in its tables must be read again."""
        self._run(self._client.close())
        self._run(self.broker.stop())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        ConfigTables.load(self.broker.config.store_path, self.broker.config.store_config())
        logging.getLogger("mqfast").removeHandler(self._log)
        logging.getLogger("mqfast").propagate = self._propagates

    def take(self, requests: list[Request]) -> list[int]:
        """Send requests and see what must hold. Returns: the codes of the answers, as they came."""
        self._inputs += 1
        codes = self._run(self._take(requests))
        if not self.is_worn:
            self._run(self._behave())
        assert not self._log.found, f"{requests}:\n" + "\n".join(self._log.found)
        return codes

    async def _take(self, requests: list[Request]) -> list[int]:
        reader, writer = await asyncio.open_connection(*self.broker.address)
        expected: dict[int, Request] = {}
        for one in [*requests, Request(_BARRIER, {})]:
            opaque = next(self._opaque)
            flag = 2 if one.is_oneway else 0
            is_binary = one.is_binary and one.code < 1 << 15 and all(len(name) < 10_000 for name in one.fields)
            command = RemotingCommand(
                one.code, one.fields, one.body, opaque=opaque, flag=flag, serialize=ROCKETMQ if is_binary else JSON
            )
            writer.write(encode(command))
            if not one.is_oneway:
                expected[opaque] = one
        codes: list[int] = []
        decoder = FrameDecoder()
        while any(one.code not in _WAITS for one in expected.values()):
            data = await reader.read(1 << 20)
            assert data, f"{requests}: the connection was closed"
            for command in decoder.feed(data):
                if not command.is_response:
                    if not command.is_oneway:
                        writer.write(encode(command.response(0, {}, requests[0].body)))
                    continue
                asked = expected.pop(command.opaque, None)
                assert asked is not None, f"{requests}: an answer to nothing: {command}"
                assert command.code != ResponseCode.SYSTEM_ERROR or command.remark, (asked, command)
                assert "Traceback" not in str(command.remark), (asked, command)
                if asked.code != _BARRIER:
                    codes.append(command.code)
            assert decoder.error is None, f"{requests}: {decoder.error}"
        writer.close()
        while len(self.broker.parts.long_polling):
            await asyncio.sleep(0)
        return codes

    async def _behave(self) -> None:
        """The other client: one message to its topic, and read again."""
        address = "{}:{}".format(*self.broker.address)
        send = {
            "a": "p", "b": self._topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": "",
            "j": "0", "k": "false",
        }  # fmt: skip
        answer = await self._client.call(address, 310, send, b"good", timeout_ms=30_000)
        assert answer.code == 0, answer
        pull = {
            "consumerGroup": self._topic, "topic": self._topic, "queueId": "0", "queueOffset": str(self._offset),
            "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "30000",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        answer = await self._client.call(address, 11, pull, timeout_ms=60_000)
        assert answer.code == 0, answer
        assert b"good" in bytes(answer.body)
        self._offset = int(answer.ext_fields["nextBeginOffset"])


async def _made(kind: type[_T]) -> _T:
    return kind()

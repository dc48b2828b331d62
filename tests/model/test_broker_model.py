"""One broker against a small model: sends, delays, transactions, pulls, offsets, messages given back, restarts and
kills in any order, by a clock that the test moves.

The broker is real, and so is the store; its connection is the sans-I/O one, without a socket. Room: tests/model.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from conftest import copy_of_open
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from running import broker_config

from mqfast.broker.server import Broker
from mqfast.remoting.channel import Channel, Endpoint
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.connection import Connection, ResponseReceived
from mqfast.remoting.settings import RemotingSettings
from mqfast.store.base.os_api import OsApi
from mqfast.store.record.record import decode_record

T = TypeVar("T")
TOPICS, GROUPS, QUEUES = ("Orders", "Bills"), ("g1", "g2"), 2
LATER = "Later"  # its messages are compared as a set: a kill may bring one of them twice
LEVELS_S = (1, 5, 20, 30, 60)  # the first two for sends, the third is that of a first send-back
COMMIT, ROLLBACK = 8, 12
START_MS = 1_700_000_000_000


class Wire(asyncio.Transport):
    """A client's connection to the broker, in memory: bytes go from one sans-I/O end to the other."""

    def __init__(self, broker: Broker) -> None:
        super().__init__({"peername": ("127.0.0.1", 5000)})
        self._out = bytearray()
        self._client = Connection(time.monotonic)
        end = Endpoint(broker.processors, RemotingSettings())
        self._server = Channel(end, server_side=True, context=None)
        self._server.connection_made(self)

    def write(self, data: Any) -> None:
        self._out += data

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self._out += part

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    async def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> RemotingCommand:
        call = self._client.call(code, {k: str(v) for k, v in fields.items()}, body, timeout_ms=60_000)
        self._server.data_received(b"".join(self._client.data_to_send()))
        end = time.monotonic() + 30
        while True:
            data, self._out = bytes(self._out), bytearray()
            for event in self._client.receive(data):
                if isinstance(event, ResponseReceived) and event.call is call:
                    return event.command
            assert time.monotonic() < end, f"no answer to {code}"
            await asyncio.sleep(0)


def records(body: Any) -> list[Any]:
    """The stored messages of a pull's answer."""
    data, found, at = bytes(body), [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(decode_record(data[at : at + size]))
        at += size
    return found


class BrokerModel(RuleBasedStateMachine):
    """What the broker must show, as plain lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.now_ms = START_MS
        self.kills = 0
        self.number = 0
        self.queues: dict[tuple[str, int], list[bytes]] = {(t, q): [] for t in TOPICS for q in range(QUEUES)}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.halves: list[tuple[int, int, str, str, int, bytes]] = []
        self.due: dict[str, dict[bytes, int]] = {LATER: {}, **{f"%RETRY%{g}": {} for g in GROUPS}}

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.path = self.root / "store"
        self.open()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def open(self) -> None:
        config = broker_config(
            self.path,
            messageDelayLevel=" ".join(f"{s}s" for s in LEVELS_S),
            transactionCheckInterval=3_600_000,
            flushConsumerOffsetInterval=3_600_000,
        )
        self.os_api = OsApi()
        self.os_api.fix_clock(self.now_ms)
        self.broker = Broker(config, now_ms=lambda: self.now_ms, os_api=self.os_api)
        self.do(self.broker.start())
        self.wire = self.do(self.connect())

    async def connect(self) -> Wire:
        return Wire(self.broker)

    def body(self) -> bytes:
        self.number += 1
        return b"m%d" % self.number

    def send(self, topic: str, queue_id: int, properties: str) -> tuple[bytes, RemotingCommand]:
        body = self.body()
        fields = {
            "a": "producers", "b": topic, "c": "TBW102", "d": QUEUES, "e": queue_id, "f": 0, "g": self.now_ms, "h": 0,
            "i": f"UNIQ_KEY\x01{body.decode()}\x02{properties}", "j": 0, "k": "false",
        }  # fmt: skip
        answer = self.do(self.wire.ask(RequestCode.SEND_MESSAGE_V2, fields, body))
        assert answer.code == 0, answer.remark
        return body, answer

    # --- what clients do ---

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, QUEUES - 1))
    def send_plain(self, topic: str, queue_id: int) -> None:
        body, answer = self.send(topic, queue_id, "")
        assert int(answer.ext_fields["queueOffset"]) == len(self.queues[topic, queue_id])
        self.queues[topic, queue_id].append(body)

    @rule(level=st.sampled_from((1, 2)))
    def send_later(self, level: int) -> None:
        body, _ = self.send(LATER, 0, f"DELAY\x01{level}")
        self.due[LATER][body] = self.now_ms + LEVELS_S[level - 1] * 1000

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, QUEUES - 1))
    def prepare(self, topic: str, queue_id: int) -> None:
        body, answer = self.send(topic, queue_id, "TRAN_MSG\x01true\x02PGROUP\x01producers")
        fields = answer.ext_fields
        place = int(fields["msgId"][16:], 16)
        self.halves.append((int(fields["queueOffset"]), place, fields["msgId"], topic, queue_id, body))

    @precondition(lambda self: self.halves)
    @rule(data=st.data(), how=st.sampled_from((COMMIT, ROLLBACK)))
    def end_transaction(self, data: st.DataObject, how: int) -> None:
        which = data.draw(st.integers(0, len(self.halves) - 1))
        offset, place, message_id, topic, queue_id, body = self.halves.pop(which)
        fields = {
            "producerGroup": "producers", "tranStateTableOffset": offset, "commitLogOffset": place,
            "commitOrRollback": how, "msgId": message_id, "fromTransactionCheck": "false",
        }  # fmt: skip
        answer = self.do(self.wire.ask(RequestCode.END_TRANSACTION, fields))
        assert answer.code == 0, answer.remark
        if how == COMMIT:
            self.queues[topic, queue_id].append(body)

    async def pull(self, group: str, topic: str, queue_id: int, offset: int) -> RemotingCommand:
        fields = {
            "consumerGroup": group, "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        return await self.wire.ask(RequestCode.PULL_MESSAGE, fields)

    def read(self, group: str, topic: str, queue_id: int, offset: int = 0) -> list[Any]:
        """All messages of a queue from an offset on."""
        found: list[Any] = []
        while True:
            answer = self.do(self.pull(group, topic, queue_id, offset + len(found)))
            if answer.code != 0:
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    return []
                expected = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
                assert answer.code in expected, answer.remark
                return found
            found += records(answer.body)

    @rule(group=st.sampled_from(GROUPS), topic=st.sampled_from(TOPICS), queue_id=st.integers(0, QUEUES - 1))
    def consume(self, group: str, topic: str, queue_id: int) -> None:
        wanted = self.queues[topic, queue_id]
        begin = self.offsets.get((group, topic, queue_id), 0)
        found = self.read(group, topic, queue_id, begin)
        assert [bytes(m.body) for m in found] == wanted[begin:]
        if not found:
            return
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        done = self.do(
            self.wire.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": begin + len(found)})
        )
        assert done.code == 0, done.remark
        self.offsets[group, topic, queue_id] = begin + len(found)
        asked = self.do(self.wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields))
        assert int(asked.ext_fields["offset"]) == begin + len(found)

    @rule(group=st.sampled_from(GROUPS), topic=st.sampled_from(TOPICS), queue_id=st.integers(0, QUEUES - 1))
    def give_back(self, group: str, topic: str, queue_id: int) -> None:
        found = self.read(group, topic, queue_id)
        if not found:
            return
        message = found[-1]
        retries = self.due[f"%RETRY%{group}"]
        if bytes(message.body) in retries:
            return
        fields = {"group": group, "offset": message.physical_offset, "delayLevel": 0, "originTopic": topic}
        answer = self.do(self.wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
        assert answer.code == 0, answer.remark
        retries[bytes(message.body)] = self.now_ms + LEVELS_S[2] * 1000

    # --- time, restarts, kills ---

    @rule(seconds=st.sampled_from((1, 4, 30)))
    def wait(self, seconds: int) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: int) -> None:
        self.now_ms += seconds * 1000
        self.os_api.fix_clock(self.now_ms)
        delays = self.broker.parts.delays
        while delays.service.run_once(self.now_ms) == 0:
            pass

    @rule()
    def restart(self) -> None:
        self.do(self.broker.stop())
        self.open()

    @rule()
    def kill(self) -> None:
        """Go on with what a kill of the process would have left; offsets may be those of the last time on disk."""
        self.kills += 1
        left = self.root / f"killed-{self.kills}"
        copy_of_open(self.path, left)
        self.do(self.broker.stop())
        shutil.rmtree(self.path)
        self.path = left
        self.open()
        for (group, topic, queue_id), offset in list(self.offsets.items()):
            fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
            answer = self.do(self.wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields))
            kept = int(answer.ext_fields["offset"]) if answer.code == 0 else 0
            assert kept <= offset
            self.offsets[group, topic, queue_id] = kept

    # --- what must hold ---

    @invariant()
    def nothing_delayed_is_early(self) -> None:
        if not hasattr(self, "broker"):
            return
        for topic, due in self.due.items():
            for message in self.read("watchers", topic, 0):
                assert due[bytes(message.body)] <= self.now_ms, message.body

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        try:
            self.pass_time(3600)
            for (topic, queue_id), wanted in self.queues.items():
                assert [bytes(m.body) for m in self.read("watchers", topic, queue_id)] == wanted
            for topic, due in self.due.items():
                found = sorted(bytes(m.body) for m in self.read("watchers", topic, 0))
                assert set(found) == set(due)
                assert self.kills or found == sorted(due)
        finally:
            self.do(self.broker.stop())
            self.loop.close()
            shutil.rmtree(self.root, ignore_errors=True)


BrokerModel.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
test_a_broker_is_what_the_model_says = BrokerModel.TestCase

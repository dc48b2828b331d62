"""Everything at once on one broker with reactors: sends and pulls of connections that come and go, beside changes of
topics, groups, subscriptions and settings, removed files, resets of offsets, counters that are read, and the end of the
broker. ``make races`` runs this with ThreadSanitizer.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from raw_frames import binary_frame, json_frame, letters, pull_fields
from running import Running, broker_config

import mqfast
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import FrameDecoder, RemotingCommand
from mqfast.remoting.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from mqfast.store.record.record import decode_record

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="reactors need epoll")

CHANGES = int(os.environ.get("MQFAST_REACTOR_CHANGES", "20"))
REACTORS, SENDERS, PULLERS, QUEUES, LEAST = 4, 6, 6, 4, 500
SMALL = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 2000, "fileReservedTime": 1}
GROUPS = ("readers", "members")
GOES = "Gone"  # a topic that is deleted and created again


class Client:
    """A connection of a thread, with many requests under way."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._decoder = FrameDecoder()
        self._answers: dict[int, RemotingCommand] = {}

    def ask(self, frames: list[bytes], opaques: list[int]) -> list[RemotingCommand]:
        """Send all, and return the answers in the order of the requests. Raises: ConnectionError."""
        self._socket.sendall(b"".join(frames))
        while any(opaque not in self._answers for opaque in opaques):
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            for answer in self._decoder.feed(data):
                if answer.is_response:
                    self._answers[answer.opaque] = answer
        return [self._answers.pop(opaque) for opaque in opaques]

    def close(self) -> None:
        self._socket.close()


class Crowd:
    """Threads that send and pull until the broker has ended.

    Attributes: acknowledged: (queue id, queue offset) -> body; failures: what was wrong; counts: answers by kind and
        code.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failures: list[str] = []
        self.counts: Counter[tuple[str, int]] = Counter()
        works = SENDERS * (self._send,) + PULLERS * (self._pull,)
        self._threads = [
            threading.Thread(target=self._run, args=(work, number), daemon=True) for number, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let all threads end: the broker has ended."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[[Client, random.Random], None], number: int) -> None:
        chance = random.Random(number)
        while not self._is_over.is_set():
            try:
                client = Client(self._address)
                try:
                    for _ in range(chance.randrange(1, 30)):
                        work(client, chance)
                finally:
                    client.close()
            except OSError:
                self._is_over.wait(0.001)
            except Exception as error:
                self.failures.append(repr(error))
                return

    def _note(self, kind: str, answer: RemotingCommand) -> None:
        with self._lock:
            self.counts[kind, answer.code] += 1
        if answer.code == ResponseCode.SYSTEM_ERROR:
            self.failures.append(f"{kind}: {answer.remark}")

    def _send(self, client: Client, chance: random.Random) -> None:
        topic, queue_id = chance.choice(("T", "T", "T", GOES)), chance.randrange(QUEUES)
        make = chance.choice((json_frame, binary_frame))
        bodies = [
            b"%016x" % chance.getrandbits(64) * chance.choice((1, 10, 100)) for _ in range(chance.randrange(1, 33))
        ]
        opaques = list(range(len(bodies)))
        tags = f"TAGS\x01{chance.choice('AB')}\x02UNIQ_KEY\x01%s\x02"
        frames = [
            make(letters(0, topic, queue_id, tags % body[:16].decode()), body, opaque=opaque)
            for opaque, body in zip(opaques, bodies, strict=True)
        ]
        last = -1
        for body, answer in zip(bodies, client.ask(frames, opaques), strict=True):
            self._note("send", answer)
            if answer.code == ResponseCode.SUCCESS and topic == "T":
                offset = int(answer.ext_fields["queueOffset"])
                if offset <= last:
                    self.failures.append(f"offset {offset} behind {last} of one connection")
                last = offset
                with self._lock:
                    self.acknowledged[queue_id, offset] = body

    def _pull(self, client: Client, chance: random.Random) -> None:
        topic, queue_id = chance.choice(("T", "T", "T", GOES)), chance.randrange(QUEUES)
        registered = chance.random() < 0.3
        more: dict[str, Any] = {"group": "members", "subVersion": 1} if registered else {}
        flags = 0 if registered else 4
        offset = 0
        for _ in range(chance.randrange(1, 30)):
            opaques = list(range(chance.randrange(1, 5)))
            fields = pull_fields(offset, queue_id=queue_id, topic=topic, maxMsgNums=chance.choice((1, 8, 32)), **more)
            fields["sysFlag"], fields["commitOffset"] = str(flags | chance.randrange(2)), str(offset)
            code = chance.choice((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
            for answer in client.ask(
                [json_frame(fields, b"", code=code, opaque=opaque) for opaque in opaques], opaques
            ):
                self._note("pull", answer)
                if answer.code == ResponseCode.SUCCESS:
                    self._check(topic, queue_id, offset, answer)
            if answer.code in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_OFFSET_MOVED,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            ):
                offset = int(answer.ext_fields["nextBeginOffset"])

    def _check(self, topic: str, queue_id: int, offset: int, answer: RemotingCommand) -> None:
        data = answer.body if isinstance(answer.body, bytes | memoryview) else b"".join(map(bytes, answer.body))
        at, rest = offset, bytes(data)
        while rest:
            message = decode_record(rest[: int.from_bytes(rest[:4], "big")])
            body = bytes(message.body)
            if (message.topic, message.queue_id) != (topic, queue_id) or message.queue_offset < at:
                self.failures.append(f"{message.topic} {message.queue_id} {message.queue_offset} in a pull at {at}")
            if body != body[:16] * (len(body) // 16):
                self.failures.append(f"the body at {message.queue_offset} is not whole")
            at, rest = message.queue_offset + 1, rest[int.from_bytes(rest[:4], "big") :]


class Changes:
    """What the event loop does beside the crowd, one change after the other."""

    def __init__(self, running: Running, chance: random.Random) -> None:
        self._running = running
        self._chance = chance
        self.removed_files = 0

    async def make_one(self) -> None:
        await self._chance.choice(
            (
                self._topic,
                self._group,
                self._setting,
                self._beat,
                self._delete,
                self._remove_files,
                self._reset,
                self._read,
            )
        )()

    async def prepare(self) -> None:
        await self._topic_of("T", 6, QUEUES)
        for group in GROUPS:
            await self._running.call(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"%s"}' % group.encode()
            )
        await self._beat()

    async def _topic_of(self, name: str, perm: int, queues: int) -> None:
        await self._running.call(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic=name, defaultTopic="TBW102", writeQueueNums=queues,
            readQueueNums=queues, perm=perm, topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
        )  # fmt: skip

    async def _topic(self) -> None:
        await self._topic_of("T", self._chance.choice((2, 4, 6)), self._chance.choice((1, QUEUES)))
        await self._topic_of("T", 6, QUEUES)

    async def _group(self) -> None:
        flag = b"true" if self._chance.random() < 0.5 else b"false"
        for consume in (flag, b"true"):
            body = b'{"groupName":"%s","consumeEnable":%s}' % (self._chance.choice(GROUPS).encode(), consume)
            await self._running.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)

    async def _setting(self) -> None:
        count = b"maxTransferCountOnMessageInMemory=%d" % self._chance.choice((3, 32))
        for text in (self._chance.choice((b"brokerPermission=4", count)), b"brokerPermission=6"):
            await self._running.call(RequestCode.UPDATE_BROKER_CONFIG, text)

    async def _beat(self) -> None:
        tags = self._chance.choice(("*", "A"))
        codes = [] if tags == "*" else [ord(tags)]
        version = self._chance.randrange(1, 1000)
        subscriptions = [
            SubscriptionData(topic=topic, sub_string=tags, code_set=codes, sub_version=version) for topic in ("T", GOES)
        ]
        member = ConsumerData(group_name="members", message_model="CLUSTERING", subscription_data_set=subscriptions)
        await self._running.call(34, encode_body(Heartbeat(client_id="a member", consumer_data_set=[member])))

    async def _delete(self) -> None:
        await self._running.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic=GOES)

    async def _remove_files(self) -> None:
        context = self._running.context
        context.store.retention.clean_now()
        self.removed_files += context.store.retention.run_once(context.now_ms() + 3 * 3_600_000)

    async def _reset(self) -> None:
        await self._running.call(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group="readers", timestamp=0, isForce="true",
            queueId=self._chance.randrange(QUEUES), offset=self._chance.randrange(100),
        )  # fmt: skip

    async def _read(self) -> None:
        await self._running.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        counts = self._running.broker.reactor_counts()
        assert counts is not None
        self._running.context.offsets.as_file()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 600))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_everything_at_once(tmp_path: Path, flush: str) -> None:
    from mqfast.broker.server import Broker

    crowds: list[Crowd] = []

    async def flow() -> None:
        settings = {
            "serverSelectorThreads": REACTORS,
            "flushDiskType": flush,
            "useServerSideResetOffset": True,
            **SMALL,
        }
        broker = Broker(broker_config(tmp_path, **settings))
        await broker.start()
        running = Running(broker, None)
        changes = Changes(running, random.Random(46))
        await changes.prepare()
        crowd = Crowd(broker.address)
        crowds.append(crowd)
        made = 0
        while not crowd.failures and (made < CHANGES or (broker.reactor_counts() or {})["served"] < LEAST):
            await changes.make_one()
            await asyncio.sleep(0.001 * (made % 20))
            made += 1
        await running.client.close()
        await broker.stop()  # beside the crowd
        await asyncio.to_thread(crowd.end)
        assert changes.removed_files > 0

    run(flow())
    (crowd,) = crowds
    assert not crowd.failures, "\n".join(crowd.failures[:10])
    assert crowd.counts["send", 0] > LEAST
    assert crowd.counts["pull", 0] > LEAST / 10
    with mqfast.open(tmp_path) as store:
        ends = {queue_id: store.max_offset("T", queue_id) for queue_id in range(QUEUES)}
        for (queue_id, offset), body in crowd.acknowledged.items():
            assert offset < ends[queue_id]
            if offset >= store.min_offset("T", queue_id):
                (message,) = store.get("T", queue_id, offset, 1)
                assert bytes(message.body) == body

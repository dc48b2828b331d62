"""How far groups are: in memory, at a real broker, in the file of broadcasting, and in a store of the user's."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from consumer_cluster import BROKER_NAME, Hand, a_cluster, in_loop, instance_of

from mqfast.client.consumer.offset_file import LocalFileOffsetStore
from mqfast.client.consumer.offsets import FileOffsets, OwnOffsets, RemoteOffsets, offsets_of
from mqfast.client.consumer.queue_bounds import (
    check_from_where,
    first_offset,
    max_offset,
    min_offset,
    number_field,
    offset_at,
    read_place,
    stored_offset,
)
from mqfast.client.net.request_steps import Request
from mqfast.client.values import MessageQueue
from mqfast.errors import BrokerError, ClientError, ConfigError, NoRoute
from mqfast.remoting.command import RemotingCommand


@pytest.fixture(scope="module")
def hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hand]:
    with a_cluster(tmp_path_factory.mktemp("offsets")) as one:
        yield Hand(one)


def queue_of(topic: str, number: int = 0) -> MessageQueue:
    return MessageQueue(topic, BROKER_NAME, number)


def test_an_offset_in_memory_may_move_back_unless_it_is_frozen(tmp_path: Path) -> None:
    async def flow() -> None:
        one, two = MessageQueue("t", "b", 0), MessageQueue("u", "b", 0)
        offsets = FileOffsets(LocalFileOffsetStore("id", "g", tmp_path))
        offsets.update(one, 7)
        offsets.update(one, 5)
        offsets.update(one, 6, increase_only=True)
        offsets.update(one, 6, increase_only=True)
        offsets.update(two, 1)
        assert offsets.get(one) == 6
        assert offsets.copy("t") == {one: 6}
        offsets.freeze(one, 2)
        offsets.update(one, 99)
        assert offsets.copy() == {one: 2, two: 1}
        offsets.remove(one)
        offsets.update(one, 3)
        assert offsets.get(one) == 3, "a new owner of the queue begins anew"

    in_loop(flow)


def test_offsets_are_kept_at_the_broker_and_only_when_they_changed(hand: Hand) -> None:
    hand.send("kept", b"1")
    hand.make_group("keepers")
    queue = queue_of("kept")

    async def flow() -> None:
        instance = await instance_of(hand.cluster)
        offsets = RemoteOffsets(instance, "keepers")
        assert await offsets.read(queue_of("kept", 3)) is None, "an empty queue: the group has no offset"
        offsets.update(queue, 41)
        await offsets.persist()
        assert await instance.driver.run(stored_offset(instance, "keepers", queue)) == 41
        # Somebody resets the offset; what did not change is not put back.
        other = RemoteOffsets(instance, "keepers")
        assert await other.read(queue) == 41
        other.update(queue, 5)
        await other.persist([queue])
        await offsets.persist()
        assert await offsets.read(queue) == 5
        await instance.release()

    in_loop(flow)
    assert hand.offset("keepers", queue) == 5


def test_a_new_group_begins_at_0_where_the_whole_queue_is_in_memory(hand: Hand) -> None:
    hand.send("small", b"1", b"2")

    async def flow() -> None:
        instance = await instance_of(hand.cluster)
        assert await RemoteOffsets(instance, "unheard").read(queue_of("small")) == 0
        await instance.release()

    in_loop(flow)


def test_an_offset_that_cannot_be_read_is_an_error_and_not_a_new_group(hand: Hand) -> None:
    hand.send("errors", b"1")
    hand.make_group("g")

    async def flow() -> None:
        instance = await instance_of(hand.cluster)
        offsets = RemoteOffsets(instance, "g")
        with pytest.raises(NoRoute):
            await offsets.read(MessageQueue("nowhere", "gone", 0))
        with pytest.raises(NoRoute, match=rf"expected a broker gone.*found {BROKER_NAME}"):
            await offsets.read(MessageQueue("errors", "gone", 0))
        offsets.update(queue_of("errors"), 1)
        offsets.update(queue_of("no topic"), 1)
        with pytest.raises(ClientError, match="no topic"):
            await offsets.persist()
        with pytest.raises(ClientError, match="no topic"):
            await offsets.persist()
        await instance.release()

    in_loop(flow)


def test_where_a_group_without_an_offset_begins(hand: Hand) -> None:
    hand.send("begin", b"1", b"2")
    queue, retry = queue_of("begin"), queue_of("%RETRY%g")
    hand.ask(34, b'{"clientID":"x","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY",'
             b'"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[],'
             b'"unitMode":false}],"producerDataSet":[]}')  # fmt: skip
    long_ago, far = datetime.fromtimestamp(1_000_000), datetime.fromtimestamp(time.time() + 3600)

    async def flow() -> None:
        instance = await instance_of(hand.cluster)

        async def first(of: MessageQueue, where: Any) -> int:
            return await instance.driver.run(first_offset(instance, of, where))

        await instance.driver.run(instance.route("begin"))
        assert [await first(queue, where) for where in ("latest", "earliest", long_ago, far)] == [2, 0, 0, 2]
        assert [await first(retry, where) for where in ("latest", "earliest", long_ago)] == [0, 0, 0]
        run = instance.driver.run
        assert (await run(min_offset(instance, queue)), await run(max_offset(instance, queue))) == (0, 2)
        assert await run(offset_at(instance, queue, 0)) == 0
        await instance.release()

    in_loop(flow)


@pytest.mark.parametrize("given", ["LAST", None, 7, "timestamp"])
def test_an_invalid_from_where_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="from_where: expected 'latest', 'earliest' or a datetime"):
        check_from_where(given)


def test_an_answer_without_a_number_is_an_error_with_the_address() -> None:
    answer = RemotingCommand(0, {"offset": "many"})
    with pytest.raises(BrokerError, match=r"a:1 answered code 0: field offset: expected a whole number, found 'many'"):
        number_field(answer, "offset", "a:1")


def test_the_route_is_requested_if_the_broker_is_unknown(hand: Hand) -> None:
    """Without a shell: the steps are looked at."""
    hand.send("steps", b"1")

    async def flow() -> None:
        instance = await instance_of(hand.cluster)
        steps = read_place(instance, MessageQueue("steps", "b", 0))
        step = next(steps)
        assert isinstance(step, Request)
        assert step.code == 105
        assert step.ext_fields == {"topic": "steps", "acceptStandardJsonOnly": "true"}
        await instance.release()

    in_loop(flow)


def test_broadcasting_keeps_offsets_in_the_file_of_the_client_id(
    hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("rocketmq.client.localOffsetStoreDir", str(tmp_path))

    async def flow() -> None:
        instance = await instance_of(hand.cluster, instance_name="DEFAULT")
        queue = MessageQueue("t", "b", 0)
        offsets = offsets_of(instance, "billing", broadcasting=True)
        assert await offsets.read(queue) is None
        offsets.update(queue, 12)
        await offsets.persist()
        assert instance.client_id.endswith("@DEFAULT")
        assert LocalFileOffsetStore(instance.client_id, "billing", tmp_path).load() == {queue: 12}
        assert await offsets_of(instance, "billing", broadcasting=True).read(queue) == 12
        await instance.release()

    in_loop(flow)


class Table:
    """A store of a user's."""

    def __init__(self) -> None:
        self.rows: dict[MessageQueue, Any] = {}
        self.saves = 0

    def load(self, queue: MessageQueue) -> int | None:
        return self.rows.get(queue)

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.saves += 1
        self.rows.update(offsets)


def test_a_store_of_the_user_sees_plain_topics_and_changes_only() -> None:
    async def flow() -> None:
        table = Table()
        offsets = OwnOffsets(table, "ns")
        wire = MessageQueue("ns%orders", "b", 0)
        assert await offsets.read(wire) is None
        offsets.update(wire, 3)
        await offsets.persist()
        await offsets.persist()
        assert table.rows == {MessageQueue("orders", "b", 0): 3}
        assert table.saves == 1
        for wrong in ("7", -1, True):
            table.rows[MessageQueue("orders", "b", 0)] = wrong
            with pytest.raises(ClientError, match=r"offset_store\.load.*from 0 on"):
                await offsets.read(wire)

    in_loop(flow)


def test_a_save_that_fails_is_tried_again() -> None:
    class Failing(Table):
        def save(self, offsets: Mapping[MessageQueue, int]) -> None:
            super().save({})
            if self.saves == 1:
                raise OSError("no disk")
            self.rows.update(offsets)

    async def flow() -> None:
        table = Failing()
        offsets = OwnOffsets(table)
        offsets.update(MessageQueue("t", "b", 0), 3)
        with pytest.raises(OSError, match="no disk"):
            await offsets.persist()
        await offsets.persist()
        assert table.rows == {MessageQueue("t", "b", 0): 3}

    in_loop(flow)


def test_a_store_without_its_methods_is_refused(hand: Hand) -> None:
    async def flow() -> None:
        instance = await instance_of(hand.cluster)
        with pytest.raises(ConfigError, match="offset_store: expected methods load and save, found dict"):
            offsets_of(instance, "g", own={})  # type: ignore[arg-type]
        await instance.release()

    in_loop(flow)

"""One pull: what is asked, and every kind of answer; on a real broker, and with answers that make no sense."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from running import Running, serve

from mqfast.client.consumer.pull_request import PullAnswer, pull
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.delivery import Source
from mqfast.client.net.asyncio_driver import AsyncioDriver
from mqfast.client.net.request_steps import Request
from mqfast.client.values import MessageQueue, PullStatus
from mqfast.errors import BrokerBusy, BrokerError, ClientError, NoRoute, Refused, UsageError
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand

QUEUE = MessageQueue("orders", "broker-a", 0)
SOURCE = Source("broker-a", QUEUE)
ALL = Subscription("orders")

Pulls = Callable[..., Awaitable[PullAnswer]]


def on_broker(path: Path, flow: Callable[[Running, Pulls], Awaitable[None]], **settings: Any) -> None:
    async def run(one: Running) -> None:
        driver = AsyncioDriver(one.client)

        async def pulls(
            offset: int, wanted: Subscription = ALL, queue: MessageQueue = QUEUE, **more: Any
        ) -> PullAnswer:
            more = {"post_subscription": True, **more}
            return await driver.run(pull(one.address, "billing", queue, offset, wanted, SOURCE, **more))

        await flow(one, pulls)

    serve(path, run, **settings)


def test_every_status_that_a_broker_answers(tmp_path: Path) -> None:
    async def flow(one: Running, pulls: Pulls) -> None:
        for i in range(40):
            await one.send("orders", b"%d" % i, properties=f"TAGS\x01{'even' if i % 2 == 0 else 'odd'}\x02")
        found = await pulls(0)
        assert found.status is PullStatus.FOUND
        assert [(m.queue_offset, m.body) for m in found.messages] == [(i, b"%d" % i) for i in range(32)]
        assert (found.next_offset, found.min_offset, found.max_offset) == (32, 0, 40)
        assert [m.queue_offset for m in (await pulls(32, max_count=3)).messages] == [32, 33, 34]
        assert [m.tags for m in (await pulls(0, Subscription("orders", "odd"))).messages] == ["odd"] * 20
        nothing = await pulls(0, Subscription("orders", "never"))
        assert (nothing.status, nothing.messages, nothing.next_offset) == (PullStatus.NO_MATCHED_MSG, [], 40)
        assert (await pulls(40)).status is PullStatus.NO_NEW_MSG
        beyond = await pulls(99)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 40)
        assert (await pulls(39, is_lite=True)).messages[0].body == b"39"
        sql = await pulls(0, Subscription("orders", sql="TAGS = 'even'"))
        assert {m.tags for m in sql.messages} == {"even"}

    on_broker(tmp_path, flow, enablePropertyFilter=True)


def test_a_pull_commits_the_given_offset(tmp_path: Path) -> None:
    async def flow(one: Running, pulls: Pulls) -> None:
        await one.send("orders", b"x")
        await pulls(0)
        await pulls(1, commit_offset=1)
        fields = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
        assert (await one.call(RequestCode.QUERY_CONSUMER_OFFSET, **fields)).ext_fields["offset"] == "1"

    on_broker(tmp_path, flow)


def test_refusals_are_errors_with_code_remark_and_address(tmp_path: Path) -> None:
    async def flow(one: Running, pulls: Pulls) -> None:
        await one.send("orders", b"x")
        with pytest.raises(NoRoute, match="unheard"):
            await pulls(0, queue=MessageQueue("unheard", "broker-a", 0))
        with pytest.raises(BrokerError, match="queueId") as wrong:
            await pulls(0, queue=MessageQueue("orders", "broker-a", 77))
        assert (wrong.value.code, wrong.value.broker) == (29, one.address)
        with pytest.raises(BrokerError) as wrong:
            await pulls(0, post_subscription=False)  # no heartbeat has named the topic
        assert wrong.value.code == 24
        with pytest.raises(BrokerError) as wrong:
            await pulls(0, Subscription("orders", sql="a = = b"))
        assert wrong.value.code in (1, 23)

    on_broker(tmp_path, flow)


def answered(answer: RemotingCommand, wanted: Subscription = ALL) -> PullAnswer:
    steps = pull("h:1", "billing", QUEUE, 0, wanted, SOURCE)
    assert isinstance(next(steps), Request)
    with pytest.raises(StopIteration) as end:
        steps.send(answer)
    found: PullAnswer = end.value.value
    return found


HEADER = {"nextBeginOffset": "5", "minOffset": "0", "maxOffset": "9", "suggestWhichBrokerId": "1"}


def test_the_answer_of_a_pull_has_the_suggested_broker_id() -> None:
    assert answered(RemotingCommand(19, HEADER)) == PullAnswer(PullStatus.NO_NEW_MSG, [], 5, 0, 9, 1)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (RemotingCommand(19, {}), ClientError, "nextBeginOffset"),
        (RemotingCommand(0, {**HEADER, "maxOffset": "many"}), ClientError, "maxOffset"),
        (RemotingCommand(0, HEADER, b"nonsense"), ClientError, "h:1 answered code 0 and what is no answer"),
        (RemotingCommand(2, None, remark="busy"), BrokerBusy, "busy"),
        (RemotingCommand(16, None, remark="no"), Refused, "no"),
        (RemotingCommand(4711, None, remark="what"), BrokerError, "code 4711 'what'"),
    ],
)
def test_invalid_answers_of_a_pull_are_errors(answer: RemotingCommand, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        answered(answer)


def test_subscription_data_in_a_heartbeat() -> None:
    one = Subscription("orders", " TagA || || Aa||TagA", version=7)
    assert one.as_json() == {
        "classFilterMode": False, "codeSet": [2598919, 2112], "expressionType": "TAG",
        "subString": " TagA || || Aa||TagA", "subVersion": 7, "tagsSet": ["TagA", "Aa"], "topic": "orders",
    }  # fmt: skip
    assert Subscription("orders", None).as_json()["subString"] == "*"
    assert Subscription("orders", "").is_all
    assert Subscription("orders", sql="a > 1").as_json()["expressionType"] == "SQL92"


@pytest.mark.parametrize(
    ("tags", "sql", "text"), [("||", None, "tag"), ("a", "b = 1", "found both"), ("*", " ", "sql"), ("*", 7, "sql")]
)
def test_subscriptions_that_are_none(tags: str, sql: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Subscription("orders", tags, sql=sql)

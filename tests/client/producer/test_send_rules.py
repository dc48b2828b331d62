"""The rules of a send without a network: attempts, answers that are tried again, deadlines, what an error says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mqfast.client.net.request_steps import Request, RequestSteps, Sleep
from mqfast.client.producer.encode import Compressor, Wire, prepared
from mqfast.client.producer.send import RETRIED, Sender, SendOptions, SendRequest
from mqfast.client.route.fault import FaultTable
from mqfast.client.values import MessageQueue, SendResult, SendStatus
from mqfast.errors import (
    BrokerBusy,
    BrokerError,
    CallTimeout,
    ConnectError,
    ConnectionLost,
    NoRoute,
    Refused,
    SendFailed,
    SendTimeout,
    UsageError,
)
from mqfast.message import Message
from mqfast.remoting.command import RemotingCommand

WIRE = Wire("producers", Compressor(None))
STORED = {"msgId": "ID", "queueId": "1", "queueOffset": "7", "transactionId": "TX", "MSG_REGION": "R"}


class Routes:
    def __init__(self, brokers: Sequence[str]) -> None:
        self.known = {name: f"{name}:10911" for name in brokers}
        self.queues = tuple(MessageQueue("T", name, number) for name in brokers for number in range(2))

    def publish_queues(self, topic: str) -> Sequence[MessageQueue]:
        return self.queues

    def address(self, broker: str) -> str | None:
        return self.known.get(broker)


class Cluster:
    """What steps see of an instance, and the shell that runs them: each attempt gets the next of ``answers``."""

    def __init__(self, *answers: Any, brokers: Sequence[str] = ("a", "b"), takes_s: float = 0.0) -> None:
        self.routes = Routes(brokers)
        self.answers = list(answers)
        self.takes_s = takes_s
        self.now = 100.0
        self.asked: list[SendRequest] = []
        self.refreshed = 0
        self.moves_to: tuple[int, Sequence[str]] | None = None  # after so many looks the topic is at these brokers
        self.found_soon: Sequence[str] | None = None  # the route that is asked for behind a failure has these brokers
        self.paused_s: list[float] = []
        self.failed: list[str] = []

    def clock(self) -> float:
        return self.now

    def route(self, topic: str, **_: Any) -> RequestSteps[Any]:
        self.refreshed += 1
        yield Request("ns", 105)
        if self.moves_to is not None and self.refreshed >= self.moves_to[0]:
            self.routes = Routes(self.moves_to[1])

    def route_failed(self, topic: str) -> None:
        self.failed.append(topic)
        if self.found_soon is not None:
            self.routes = Routes(self.found_soon)

    def run(self, sender: Sender, message: Message, how: SendOptions | None = None) -> SendResult | None:
        return self.drive(sender.send(self, prepared(message, WIRE), how or SendOptions(3.0)))  # type: ignore[arg-type]

    def drive(self, steps: Any) -> SendResult | None:
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = error = None
            if isinstance(step, Request):
                continue
            if isinstance(step, Sleep):
                self.now += step.seconds
                self.paused_s.append(step.seconds)
                continue
            self.asked.append(step)
            self.now += self.takes_s
            found = self.answers.pop(0)
            if isinstance(found, Exception):
                error = found
            elif isinstance(found, int):
                answer = RemotingCommand(found, dict(STORED), remark=f"remark {found}", flag=1)
            else:
                answer = found


def sender(cluster: Cluster, **arguments: Any) -> Sender:
    return Sender(WIRE, clock=cluster.clock, now=lambda: 1_700_000_000.5, **arguments)


MESSAGE = Message("T", b"x", tags="new")
LOST = ConnectionLost("a: the connection ended")
SILENT = CallTimeout("a: no answer")
NOBODY = ConnectError("a: refused")


@pytest.mark.parametrize("answer, failed", [(LOST, 1), (SILENT, 1), (NOBODY, 1), (14, 1), (2, 0), (0, 0)])
def test_failed_attempt_requests_the_route(answer: Any, failed: int) -> None:
    cluster = Cluster(answer, 0)
    cluster.run(sender(cluster), MESSAGE)
    assert cluster.failed == ["T"] * failed


def test_go_away_refreshes_the_route_before_the_next_attempt() -> None:
    cluster = Cluster(1500, 0, brokers=["a"])
    cluster.moves_to = (1, ["b"])
    assert cluster.run(sender(cluster), MESSAGE) is not None
    assert [one.address for one in cluster.asked] == ["a:10911", "b:10911"]
    assert cluster.paused_s == []


def test_send_without_another_broker_waits_for_a_new_route() -> None:
    cluster = Cluster(NOBODY, 0, brokers=["a"])
    cluster.found_soon = ["a", "b"]
    assert cluster.run(sender(cluster), MESSAGE) is not None
    assert [ask.address for ask in cluster.asked] == ["a:10911", "b:10911"]
    assert (cluster.failed, cluster.paused_s, cluster.refreshed) == (["T"], [0.1], 0)


def test_a_send_with_another_broker_does_not_wait() -> None:
    cluster = Cluster(NOBODY, 0)
    assert cluster.run(sender(cluster), MESSAGE) is not None
    assert cluster.paused_s == []


def test_go_away_without_another_broker_waits_and_uses_no_attempt() -> None:
    """Neither "go away" nor a connection that is not made meanwhile uses up an attempt: nothing was stored."""
    cluster = Cluster(1500, NOBODY, NOBODY, NOBODY, 0, brokers=["a"])
    cluster.moves_to = (4, ["b"])
    assert cluster.run(sender(cluster), MESSAGE) is not None
    assert [one.address for one in cluster.asked] == ["a:10911"] * 4 + ["b:10911"]
    assert cluster.paused_s == pytest.approx([0.1, 0.2, 0.4])
    assert cluster.now - 100.0 < 3.0


def test_repeated_go_away_ends_the_send_at_its_deadline() -> None:
    cluster = Cluster(*[1500] * 20, brokers=["a"])
    with pytest.raises(SendFailed, match="nothing was stored") as caught:
        cluster.run(sender(cluster), MESSAGE)
    assert 2.9 < cluster.now - 100.0 <= 3.0
    assert not caught.value.maybe_stored


def test_send_to_a_fixed_queue_waits_after_go_away() -> None:
    cluster = Cluster(1500, 1500, 0)
    queue = MessageQueue("T", "a", 1)
    assert cluster.run(sender(cluster), MESSAGE, SendOptions(3.0, queue)) is not None
    assert [one.address for one in cluster.asked] == ["a:10911"] * 3


@pytest.mark.parametrize("code, status", [(0, 0), (10, 1), (12, 2), (11, 3)])
def test_four_answers_mean_that_it_is_stored(code: int, status: int) -> None:
    cluster = Cluster(code)
    result = cluster.run(sender(cluster), MESSAGE)
    assert result is not None
    assert result.status is SendStatus(status)
    assert result.ok is (status == 0)
    assert (result.offset_msg_id, result.queue_offset, result.offset) == ("ID", 7, 7)
    assert result.message_queue == MessageQueue("T", cluster.asked[0].head.fields["n"], 1)
    assert (result.transaction_id, result.region_id, result.recall_handle) == ("TX", "R", None)
    assert len(cluster.asked) == 1


@pytest.mark.parametrize("code", RETRIED)
def test_an_answer_of_the_list_is_tried_again_on_another_broker(code: int) -> None:
    cluster = Cluster(code, 0)
    result = cluster.run(sender(cluster), MESSAGE)
    assert result is not None
    first, second = cluster.asked
    assert first.address != second.address
    assert first.out is second.out
    assert result.msg_id == first.out.msg_id


@pytest.mark.parametrize("code, kind", [(13, BrokerError), (29, BrokerError), (26, BrokerError), (3, BrokerError)])
def test_any_other_answer_ends_the_send(code: int, kind: type[BrokerError]) -> None:
    cluster = Cluster(code)
    with pytest.raises(kind, match=f"answered code {code} 'remark {code}'") as caught:
        cluster.run(sender(cluster), MESSAGE)
    assert (caught.value.code, caught.value.remark) == (code, f"remark {code}")
    assert caught.value.broker == cluster.asked[0].address
    assert caught.value.msg_id == cluster.asked[0].out.msg_id


@pytest.mark.parametrize("error", [LOST, SILENT, NOBODY], ids=["lost", "silent", "nobody"])
def test_a_failure_on_the_way_is_tried_again_on_another_broker(error: Exception) -> None:
    cluster = Cluster(error, error, 0)
    assert cluster.run(sender(cluster), MESSAGE) is not None
    first, second, third = (ask.address for ask in cluster.asked)
    assert first != second != third


@pytest.mark.parametrize("retries, attempts", [(0, 1), (1, 2), (2, 3), (5, 6)])
def test_there_are_as_many_attempts_as_the_setting_says(retries: int, attempts: int) -> None:
    cluster = Cluster(*[NOBODY] * 10)
    with pytest.raises((SendFailed, ConnectError)):
        cluster.run(sender(cluster, retries=retries), MESSAGE)
    assert len(cluster.asked) == attempts


def test_send_failed_lists_attempts_and_maybe_stored() -> None:
    cluster = Cluster(SILENT, NOBODY, 2, takes_s=0.5)
    with pytest.raises(SendFailed) as caught:
        cluster.run(sender(cluster), MESSAGE)
    error = caught.value
    msg_id = cluster.asked[0].out.msg_id
    text = str(error)
    assert text.startswith("T: 3 attempts in 1.50 s: ")
    assert "gave no answer in 0.50 s" in text
    assert "answered code 2 'remark 2'" in text
    assert f"the message may be stored (msg_id {msg_id})" in text
    assert error.maybe_stored
    assert error.msg_id == msg_id
    assert [type(one[2]) for one in error.attempts] == [CallTimeout, ConnectError, BrokerBusy]
    assert [one[1] for one in error.attempts] == [0.5, 0.5, 0.5]
    assert {one[0] for one in error.attempts} == {"a a:10911", "b b:10911"}


def test_nothing_is_stored_where_no_broker_could_take_it() -> None:
    cluster = Cluster(NOBODY, 2, 2)
    with pytest.raises(SendFailed, match="nothing was stored") as caught:
        cluster.run(sender(cluster), MESSAGE)
    assert not caught.value.maybe_stored


@pytest.mark.parametrize(
    "answer, kind, match, stored",
    [
        (SILENT, SendTimeout, "gave no answer in 3.00 s; the message may be stored", True),
        (NOBODY, ConnectError, "a: refused; nothing was stored", None),
        (LOST, SendFailed, "the message may be stored", True),
        (2, BrokerBusy, "code 2", None),
        (16, Refused, "code 16", None),
    ],
)
def test_a_single_attempt_has_its_own_kind_of_error(
    answer: Any, kind: type[Exception], match: str, stored: bool | None
) -> None:
    cluster = Cluster(answer, takes_s=3.0)
    with pytest.raises(kind, match=match) as caught:
        cluster.run(sender(cluster, retries=0), MESSAGE)
    assert getattr(caught.value, "maybe_stored", None) is stored


def test_attempts_share_the_send_timeout() -> None:
    cluster = Cluster(SILENT, SILENT, 0, takes_s=1.6)
    with pytest.raises(SendFailed, match=r"2 attempts in 3\.20 s"):
        cluster.run(sender(cluster), MESSAGE)
    assert [round(ask.timeout_s, 3) for ask in cluster.asked] == [3.0, 1.4]


def test_another_status_than_ok_is_tried_again_where_that_is_wanted() -> None:
    cluster = Cluster(11, 0)
    result = cluster.run(sender(cluster, retry_when_not_ok=True), MESSAGE)
    assert result is not None
    assert result.ok
    assert len(cluster.asked) == 2
    for rest in ([LOST, LOST], [13]):
        cluster = Cluster(11, *rest)
        result = cluster.run(sender(cluster, retry_when_not_ok=True), MESSAGE)
        assert result is not None
        assert result.status is SendStatus.SLAVE_NOT_AVAILABLE


def to_b1(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
    return next(queue for queue in queues if queue[1:] == ("b", 1))


@pytest.mark.parametrize(
    "message, how",
    [
        (Message("T", b"x", sharding_key="key"), SendOptions(3.0)),
        (MESSAGE, SendOptions(3.0, MessageQueue("T", "b", 1))),
        (MESSAGE, SendOptions(3.0, None, to_b1)),
    ],
    ids=["key", "queue", "selector"],
)
def test_send_to_a_fixed_queue_is_not_retried(message: Message, how: SendOptions) -> None:
    cluster = Cluster(0)
    cluster.run(sender(cluster), message, how)
    where = (cluster.asked[0].head.fields["n"], cluster.asked[0].head.fields["e"])
    assert where == (("b", 1) if message is MESSAGE else where)
    cluster = Cluster(2, 0)
    with pytest.raises(BrokerBusy):
        cluster.run(sender(cluster), message, how)
    assert len(cluster.asked) == 1


def test_equal_sharding_keys_go_to_the_same_queue() -> None:
    for key in ("a", "customer-7", ""):
        cluster = Cluster(*[0] * 8)
        for _ in range(8):
            cluster.run(sender(cluster), Message("T", b"x", sharding_key=key))
        places = {(ask.head.fields["n"], ask.head.fields["e"]) for ask in cluster.asked}
        assert len(places) == (1 if key else len(places))


@pytest.mark.parametrize(
    "how, match",
    [
        (SendOptions(3.0, MessageQueue("U", "a", 0)), "expected a queue of topic 'T'"),
        (SendOptions(3.0, ("T", "a", 0)), "expected a MessageQueue"),  # type: ignore[arg-type]
        (SendOptions(3.0, None, lambda queues, message: None), "selector: expected one of the 4 queues"),  # type: ignore[arg-type, return-value]
    ],
)
def test_invalid_queue_is_refused_before_a_request(how: SendOptions, match: str) -> None:
    cluster = Cluster()
    with pytest.raises(UsageError, match=match):
        cluster.run(sender(cluster), MESSAGE, how)
    assert not cluster.asked


def test_oneway_send_is_not_retried() -> None:
    cluster = Cluster(None)
    assert cluster.run(sender(cluster), MESSAGE, SendOptions(3.0, oneway=True)) is None
    assert cluster.asked[0].oneway
    cluster = Cluster(NOBODY)
    with pytest.raises(ConnectError):
        cluster.run(sender(cluster), MESSAGE, SendOptions(3.0, oneway=True))


def test_a_broker_without_an_address_is_looked_up_again() -> None:
    cluster = Cluster(0)
    cluster.routes.known.clear()
    with pytest.raises(SendFailed, match="no known route names the master of broker"):
        cluster.run(sender(cluster), MESSAGE)
    assert cluster.refreshed == 3
    assert not cluster.asked


@pytest.mark.parametrize("missing", ["msgId", "queueId", "queueOffset"])
def test_an_answer_that_lacks_a_field_is_an_error_with_code_and_address(missing: str) -> None:
    fields = {name: value for name, value in STORED.items() if name != missing}
    cluster = Cluster(RemotingCommand(0, fields, flag=1))
    with pytest.raises(BrokerError, match=f"without a valid msgId, queueId and queueOffset .*{missing}.*may be stored"):
        cluster.run(sender(cluster), MESSAGE)


def test_the_first_attempt_needs_no_steps_where_any_queue_of_a_known_route_will_do() -> None:
    cluster = Cluster()
    cluster.routes.version = object()  # type: ignore[attr-defined]
    one, out = sender(cluster), prepared(MESSAGE, WIRE)
    asks = [one.first_attempt(cluster, out, SendOptions(3.0)) for _ in range(8)]  # type: ignore[arg-type]
    places = [(ask.address, ask.head.fields["n"], ask.head.fields["e"]) for ask in asks if ask is not None]
    assert sorted(places) == sorted(2 * [(f"{name}:10911", name, number) for name in "ab" for number in range(2)])
    result = asks[0].stored(RemotingCommand(0, dict(STORED), flag=1))  # type: ignore[union-attr]
    assert result == cluster_result(out.msg_id, places[0][1])
    cluster.routes.known["a"], cluster.routes.version = "a:1", object()  # type: ignore[attr-defined]
    assert {one.first_attempt(cluster, out, SendOptions(3.0)).address for _ in range(4)} == {"a:1", "b:10911"}  # type: ignore[arg-type, union-attr]
    for message, how in (
        (Message("T", b"x", sharding_key="key"), SendOptions(3.0)),
        (Message("T", b"x", reconsume_times=1), SendOptions(3.0)),
        (MESSAGE, SendOptions(3.0, MessageQueue("T", "b", 1))),
        (MESSAGE, SendOptions(3.0, None, to_b1)),
        (MESSAGE, SendOptions(3.0, oneway=True)),
    ):
        assert one.first_attempt(cluster, prepared(message, WIRE), how) is None  # type: ignore[arg-type]
    assert sender(cluster, faults=FaultTable()).first_attempt(cluster, out, SendOptions(3.0)) is None  # type: ignore[arg-type]
    del cluster.routes.known["b"]
    cluster.routes.version = object()  # type: ignore[attr-defined]
    assert one.first_attempt(cluster, out, SendOptions(3.0)) is None  # type: ignore[arg-type]


def cluster_result(msg_id: str, broker: str) -> SendResult:
    queue = MessageQueue("T", broker, 1)
    return SendResult(SendStatus.SEND_OK, msg_id, "ID", queue, 7, "TX", None, "R", (msg_id,))


@pytest.mark.parametrize(
    "outcome",
    [2, 10, 205, LOST, RemotingCommand(0, {"msgId": "x"}, flag=1), RemotingCommand(0, {**STORED, "queueId": "one"})],
    ids=["busy", "no flush", "permission", "lost", "half", "no number"],
)
def test_steps_continue_after_the_first_attempt_as_from_the_start(outcome: Any) -> None:
    ends = []
    for ready in (False, True):
        cluster = Cluster(outcome, 0, brokers=("a",))
        cluster.routes.version = object()  # type: ignore[attr-defined]
        cluster.routes.queues = cluster.routes.queues[:1]
        one, out = sender(cluster, retries=1), prepared(MESSAGE, WIRE)
        first = one.first_attempt(cluster, out, SendOptions(3.0)) if ready else None  # type: ignore[arg-type]
        assert (first is not None) is ready
        try:
            end: Any = cluster.drive(one.send(cluster, out, SendOptions(3.0), first))  # type: ignore[arg-type]
            end = end.status
        except BrokerError as error:
            end = str(error).replace(out.msg_id, "")
        assert first is None or cluster.asked[0] is first
        ends.append((end, len(cluster.asked), one.retried))
    assert ends[0] == ends[1]


def test_a_slow_broker_is_avoided() -> None:
    cluster = Cluster(*[0] * 20, takes_s=0.6)
    faults = FaultTable(clock=cluster.clock)
    one = sender(cluster, faults=faults)
    cluster.run(one, MESSAGE)
    slow = cluster.asked[0].head.fields["n"]
    cluster.takes_s = 0.0
    for _ in range(6):
        cluster.run(one, MESSAGE)
    assert {ask.head.fields["n"] for ask in cluster.asked[1:]} == {"a", "b"} - {slow}
    cluster.now += 2.1
    for _ in range(8):
        cluster.run(one, MESSAGE)
    assert {ask.head.fields["n"] for ask in cluster.asked[7:]} == {"a", "b"}


def test_the_time_of_birth_is_that_of_the_attempt_or_the_messages_own() -> None:
    cluster = Cluster(0, 0)
    cluster.run(sender(cluster), MESSAGE)
    cluster.run(sender(cluster), Message("T", b"x", born_timestamp=5))
    assert [ask.ext_fields["g"] for ask in cluster.asked] == [1_700_000_000_500, 5]


def test_the_fields_of_a_signed_request_are_those_of_its_frame() -> None:
    from mqfast.remoting.command import FrameDecoder

    cluster = Cluster(0)
    cluster.run(sender(cluster), MESSAGE)
    ask = cluster.asked[0]
    (command,) = FrameDecoder().feed(ask.frame(7))
    assert command.ext_fields == {name: str(value) for name, value in ask.ext_fields.items()}


def test_a_topic_without_a_queue_to_write_to() -> None:
    cluster = Cluster()
    cluster.routes.queues = ()

    class Route:
        brokers: dict[str, Any] = {"a": None}  # noqa: RUF012

    def publish_route(topic: str, **_: Any) -> RequestSteps[Any]:
        yield Request("ns", 105)
        return Route()

    cluster.publish_route = publish_route  # type: ignore[attr-defined]
    with pytest.raises(NoRoute, match="topic T: a has it, but none has a master and a queue with write permission"):
        cluster.run(sender(cluster), MESSAGE)

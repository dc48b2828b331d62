"""One connection without I/O: the same events however its bytes are cut; answers find their calls; time ends them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from captures import captures

from mqfast.errors import HeaderIllegal, InternalError, TooManyCalls
from mqfast.remoting.command import JSON, ROCKETMQ, FrameDecoder, RemotingCommand, encode
from mqfast.remoting.connection import (
    Connection,
    ConnectionEvent,
    ProtocolError,
    RequestReceived,
    ResponseReceived,
    UnmatchedResponse,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def sent(connection: Connection) -> list[RemotingCommand]:
    decoder = FrameDecoder()
    return decoder.feed(b"".join(connection.data_to_send()))


def shape(events: list[ConnectionEvent]) -> list[tuple[object, ...]]:
    return [
        ("broken", str(e.error))
        if isinstance(e, ProtocolError)
        else (type(e).__name__, repr(e.command), e.command.body)
        for e in events
    ]


STREAM = b"".join(capture.frame for capture in captures("5.3.3-json")[:40])
DAMAGED = STREAM + b"\0\0\0\1" + STREAM[:500]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=8), st.sampled_from([STREAM, DAMAGED]))
def test_every_cut_of_the_bytes_gives_the_same_events(cuts: list[int], stream: bytes) -> None:
    whole = Connection(Clock())
    expected = whole.receive(stream)
    pieces, found, at, turn = Connection(Clock()), [], 0, 0
    while at < len(stream):
        found += pieces.receive(stream[at : at + cuts[turn % len(cuts)]])
        at, turn = at + cuts[turn % len(cuts)], turn + 1
    assert shape(found) == shape(expected)
    assert (pieces.buffered, pieces.open_requests) == (whole.buffered, whole.open_requests)


def test_byte_by_byte() -> None:
    connection = Connection(Clock())
    found = [event for byte in DAMAGED for event in connection.receive(bytes([byte]))]
    assert shape(found) == shape(Connection(Clock()).receive(DAMAGED))
    assert isinstance(found[-1], ProtocolError)
    assert isinstance(found[-1].error, HeaderIllegal)
    assert connection.receive(STREAM) == []


def test_responses_match_calls_in_any_order_and_others_are_unmatched() -> None:
    connection = Connection(Clock())
    calls = [connection.call(105, {"topic": f"t{i}"}, timeout_ms=1000, context=i) for i in range(3)]
    requests = sent(connection)
    assert [request.opaque for request in requests] == [call.opaque for call in calls]
    assert [request.ext_fields["topic"] for request in requests] == ["t0", "t1", "t2"]
    stream = b"".join(encode(requests[i].response(remark=str(i))) for i in (2, 0, 2))
    first, second, third = connection.receive(stream)
    assert isinstance(first, ResponseReceived)
    assert (first.call.context, first.command.remark) == (2, "2")
    assert isinstance(second, ResponseReceived)
    assert second.call.context == 0
    assert isinstance(third, UnmatchedResponse)
    # A request of the peer may have the number of a call of ours.
    (request,) = connection.receive(encode(RemotingCommand(40, opaque=calls[1].opaque)))
    assert isinstance(request, RequestReceived)
    (answered,) = connection.receive(encode(requests[1].response()))
    assert isinstance(answered, ResponseReceived)


def test_calls_time_out_one_by_one_and_late_answers_are_unmatched() -> None:
    clock = Clock()
    connection = Connection(clock)
    slow = connection.call(11, timeout_ms=30_000)
    fast = connection.call(14, timeout_ms=500)
    requests = sent(connection)
    assert connection.next_deadline_s() == 100.5
    assert connection.expired() == []
    clock.now = 100.5
    assert connection.expired() == [fast]
    assert connection.next_deadline_s() == 130.0
    (late,) = connection.receive(encode(requests[1].response()))
    assert isinstance(late, UnmatchedResponse)
    (answered,) = connection.receive(encode(requests[0].response()))
    assert answered == ResponseReceived(slow, answered.command)
    assert connection.next_deadline_s() is None
    clock.now = 1000.0
    assert connection.expired() == []


def test_a_frame_that_never_ends_is_found_by_the_next_call_that_expires() -> None:
    """A length that was wrong on its way takes all later answers for the rest of its frame."""
    clock = Clock()
    connection = Connection(clock)
    first = connection.call(14, timeout_ms=500)
    answer = encode(sent(connection)[0].response())
    clock.now = 100.1
    assert connection.receive(answer[:-1]) == []
    clock.now = 100.5
    assert connection.expired() == [first]
    assert not connection.is_stuck(first)  # its own answer may be that slow
    second = connection.call(14, timeout_ms=1000)
    clock.now = 101.5
    assert connection.expired() == [second]
    assert connection.is_stuck(second)
    connection.receive(answer[-1:])
    assert not connection.is_stuck(second)


def test_a_frame_that_comes_slowly_is_waited_for_whatever_short_calls_expire() -> None:
    """A heartbeat behind the long answer to a pull: both go over one connection, and the link may be slow."""
    clock = Clock()
    connection = Connection(clock)
    pull = connection.call(11, timeout_ms=60_000)
    answer = encode(sent(connection)[0].response(body=b"x" * 1000))
    part = len(answer) // 30
    for at in range(0, 30 * part, part):
        assert connection.receive(answer[at : at + part]) == []
        short = connection.call(34, timeout_ms=500)
        clock.now += 0.9
        assert connection.expired() == [short]
        assert not connection.is_stuck(short)
    [event] = connection.receive(answer[30 * part :])
    assert isinstance(event, ResponseReceived)
    assert event.call is pull


def test_too_slow_frame_times_out() -> None:
    clock = Clock()
    connection = Connection(clock)
    connection.call(11, timeout_ms=60_000)
    answer = encode(sent(connection)[0].response(body=b"x" * 1000))
    found: list[bool] = []
    for at in range(40):
        connection.receive(answer[at : at + 1])
        short = connection.call(34, timeout_ms=500)
        clock.now += 0.9
        found.append(connection.is_stuck(short))
    assert found == [False] * 33 + [True] * 7


def test_a_peer_is_mute_when_calls_expire_and_nothing_came_meanwhile() -> None:
    clock = Clock()
    connection = Connection(clock)
    connection.call(11, timeout_ms=30_000)
    clock.now = 110.0
    short = connection.call(34, timeout_ms=500)
    assert not connection.is_unresponsive  # a long call is no reason
    clock.now = 110.5
    assert connection.expired() == [short]
    assert not connection.is_unresponsive  # half a second: the peer may be that slow
    clock.now = 110.6
    again = connection.call(34, timeout_ms=500)
    clock.now = 111.1
    assert connection.expired() == [again]
    assert connection.is_unresponsive


def test_a_peer_that_answers_others_is_not_mute() -> None:
    clock = Clock()
    connection = Connection(clock)
    lost = connection.call(34, timeout_ms=3000)
    other = connection.call(34, timeout_ms=3000)
    answer = encode(sent(connection)[1].response())
    clock.now = 100.1
    [event] = connection.receive(answer)
    assert isinstance(event, ResponseReceived)
    assert event.call is other
    clock.now = 103.0
    assert connection.expired() == [lost]
    assert not connection.is_unresponsive


def test_deadlines_hold_while_most_of_many_calls_are_answered() -> None:
    """Deadlines of answered calls are dropped from time to time; those of the others stay, in their order."""
    clock = Clock()
    connection = Connection(clock)
    left = []
    for i in range(20_000):
        clock.now += 0.001
        context = object()
        deadline_s = connection.send_encoded(lambda opaque: b"x", 310, 30.0 if i % 100 else 5.0 + i % 7, context)
        if i % 1000 < 3:
            left.append((deadline_s, i, context))
            continue
        connection.receive(encode(RemotingCommand(0, opaque=i, flag=1)))
    left.sort()
    assert connection.next_deadline_s() == left[0][0]
    found = []
    while (deadline := connection.next_deadline_s()) is not None:
        clock.now = max(clock.now, deadline)
        found += connection.expired()
    assert [(call.deadline_s, call.opaque, call.context) for call in found] == left
    assert connection.close() == []


def test_oneway_requests_get_no_response_and_others_get_a_response() -> None:
    connection = Connection(Clock())
    oneway, request = RemotingCommand(15, opaque=1, flag=2), RemotingCommand(14, opaque=2, serialize=ROCKETMQ)
    events = connection.receive(encode(oneway) + encode(request))
    assert [type(event) for event in events] == [RequestReceived, RequestReceived]
    assert connection.open_requests == 1
    commands = [event.command for event in events if isinstance(event, RequestReceived)]
    for command in commands:
        connection.answer(command, command.response(22))
    (answer,) = sent(connection)
    assert (answer.code, answer.opaque, answer.is_response, answer.serialize) == (22, 2, True, ROCKETMQ)
    assert connection.open_requests == 0
    with pytest.raises(InternalError, match="twice"):
        connection.answer(commands[1], None)


@pytest.mark.parametrize("parts", [1, 4])
def test_an_answer_that_is_longer_than_a_frame_says_so(parts: int) -> None:
    connection = Connection(Clock(), frame_bytes_max=1000)
    answered = []
    for size in (600, 1000, 600):
        (event,) = connection.receive(encode(RemotingCommand(11, opaque=size)))
        assert isinstance(event, RequestReceived)
        body = b"x" * size if parts == 1 else [b"x" * (size // parts)] * parts
        connection.answer(event.command, event.command.response(0, body=body))
    answered = sent(connection)
    assert [(one.code, one.opaque, len(one.body)) for one in answered] == [(0, 600, 600), (1, 1000, 0), (0, 600, 600)]
    remark = answered[1].remark
    assert remark is not None
    assert "more than the 1000 of a frame; ask for less, or raise frameMaxLength here" in remark
    assert connection.open_requests == 0


def test_a_request_may_end_without_an_answer() -> None:
    connection = Connection(Clock())
    (event,) = connection.receive(encode(RemotingCommand(37, opaque=2)))
    assert isinstance(event, RequestReceived)
    connection.answer(event.command, None)
    assert connection.open_requests == 0
    assert connection.data_to_send() == []


def test_requests_of_this_end_speak_the_codec_of_the_peer_where_they_can() -> None:
    connection = Connection(Clock())
    connection.oneway(40, {"consumerGroup": "g"})
    connection.receive(encode(RemotingCommand(34, serialize=ROCKETMQ, flag=2)))
    connection.oneway(40, {"consumerGroup": "g"})
    connection.oneway(200050)
    connection.call(307, timeout_ms=1, serialize=JSON)
    commands = sent(connection)
    assert [command.serialize for command in commands] == [JSON, ROCKETMQ, JSON, JSON]
    assert [command.is_oneway for command in commands] == [True, True, True, False]
    assert len({command.opaque for command in commands}) == 4


def test_bodies_of_open_requests_have_a_limit() -> None:
    connection = Connection(Clock(), request_bytes_max=1000)
    events = connection.receive(b"".join(encode(RemotingCommand(10, body=bytes(400), opaque=i)) for i in range(3)))
    assert (connection.open_bytes, connection.wants_to_read) == (1200, False)
    assert isinstance(events[0], RequestReceived)
    connection.answer(events[0].command, events[0].command.response(0))
    assert (connection.open_bytes, connection.wants_to_read) == (800, True)
    for event in events[1:]:
        assert isinstance(event, RequestReceived)
        connection.answer(event.command, None)
    assert connection.open_bytes == 0
    connection.receive(encode(RemotingCommand(10, body=bytes(5000), flag=2)))  # one-way: there is no answer
    assert (connection.open_bytes, connection.wants_to_read) == (0, True)


def test_back_pressure() -> None:
    connection = Connection(Clock(), requests_max=2, calls_max=2)
    assert connection.wants_to_read
    events = connection.receive(b"".join(encode(RemotingCommand(11, opaque=i)) for i in range(3)))
    assert not connection.wants_to_read
    for event in events[:2]:
        assert isinstance(event, RequestReceived)
        connection.answer(event.command, event.command.response(19))
    assert connection.wants_to_read
    connection.blocked = True
    assert not connection.wants_to_read
    for _ in range(2):
        connection.call(39, timeout_ms=1)
    with pytest.raises(TooManyCalls, match="at most 2 requests"):
        connection.call(39, timeout_ms=1)


def test_a_body_in_pieces_is_sent_in_pieces_and_counted() -> None:
    connection = Connection(Clock())
    (event,) = connection.receive(encode(RemotingCommand(11)))
    assert isinstance(event, RequestReceived)
    view = memoryview(b"mapped log")
    connection.answer(event.command, event.command.response(body=[view, b"!"]))
    counted = connection.out_bytes
    out = connection.data_to_send()
    assert out[1] is view
    assert counted == sum(map(len, out))
    assert connection.out_bytes == 0
    assert FrameDecoder().feed(b"".join(out))[0].body == b"mapped log!"


def test_a_closed_connection_gives_back_its_calls_and_does_nothing_more() -> None:
    clock = Clock()
    connection = Connection(clock)
    call = connection.call(14, timeout_ms=10)
    (event,) = connection.receive(encode(RemotingCommand(11)))
    clock.now += 7
    assert connection.idle_s() == 7
    assert connection.close() == [call]
    assert isinstance(event, RequestReceived)
    connection.answer(event.command, event.command.response())
    connection.oneway(40)
    assert connection.data_to_send() == []
    assert connection.receive(STREAM) == []
    clock.now += 100
    assert connection.expired() == []


def test_opaque_wraps_around_without_collisions() -> None:
    connection = Connection(Clock())
    first = connection.call(11, timeout_ms=1)
    connection._next_opaque = 2**31 - 1
    last = connection.call(11, timeout_ms=1)
    after = connection.call(11, timeout_ms=1)
    assert (first.opaque, last.opaque, after.opaque) == (0, 2**31 - 1, 1)

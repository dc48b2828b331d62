"""What is cached of one queue: the offset that may be committed, against a model of sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from reference import Record

from mqfast.client.consumer.process_queue import ProcessQueue
from mqfast.client.delivery import Delivery, Source, decode_deliveries
from mqfast.client.values import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


def messages(*offsets: int, body: bytes = b"x") -> list[Delivery]:
    data = b"".join(Record("orders", body, queue_offset=offset).encode() for offset in offsets)
    return decode_deliveries(data, Source("broker-a", QUEUE))


def offsets(found: list[Delivery]) -> list[int]:
    return [one.queue_offset for one in found]


def test_the_oldest_unacknowledged_message_bounds_the_committable_offset() -> None:
    queue = ProcessQueue(QUEUE, 10)
    assert (queue.committable, queue.span, queue.oldest()) == (10, 0, None)
    assert queue.put(messages(10, 11, 12), 15) == 3  # 13 and 14 did not match
    assert (queue.committable, queue.next_offset, queue.count, queue.span) == (10, 15, 3, 2)
    first, second, third = queue.take_messages(5)
    assert queue.ack([second]) == 1
    assert queue.committable == 10
    assert queue.ack([first]) == 1
    assert (queue.committable, offsets(queue.open_messages())) == (12, [12])
    assert queue.ack([third]) == 1
    assert (queue.committable, queue.count, queue.bytes, queue.span) == (15, 0, 0, 0)


def test_a_message_is_acknowledged_once() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 1), 2)
    taken = queue.take_messages(1)
    assert queue.ack(taken) == 1
    assert queue.ack(taken) == 0
    assert queue.count == 1


def test_messages_of_an_earlier_pull_are_left_out() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 1), 2)
    assert queue.put(messages(0, 1, 2), 3) == 1
    assert offsets(queue.take_messages(9)) == [0, 1, 2]


def test_requeued_messages_come_first_and_in_order() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(*range(5)), 5)
    taken = queue.take_messages(3)
    queue.ack(taken[:1])
    queue.requeue(taken)
    assert offsets(queue.take_messages(9)) == [1, 2, 3, 4]


def test_a_dropped_queue_hands_out_nothing() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 1, 2), 3)
    queue.take_messages(1)
    assert offsets(queue.drop()) == [0, 1, 2]
    assert queue.dropped
    assert queue.take_messages(9) == []
    assert queue.waiting == 0


def test_a_dropped_queue_takes_no_message_back() -> None:
    """Fail a message of a queue that was revoked meanwhile: the workers would be offered the queue without end."""
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 1), 2)
    taken = queue.take_messages(1)
    queue.drop()
    queue.requeue(taken)
    assert queue.waiting == 0
    assert queue.committable == 0


def test_bytes_are_those_of_the_records() -> None:
    queue = ProcessQueue(QUEUE, 0)
    found = messages(0, 1, body=b"x" * 1000)
    queue.put(found, 2)
    assert queue.bytes == sum(one.store_size for one in found) > 2000


@given(st.data())
def test_no_unacknowledged_message_is_below_the_committable_offset(data: st.DataObject) -> None:
    queue = ProcessQueue(QUEUE, 0)
    open_, taken, waiting, settled = set[int](), list[Delivery](), list[int](), set[int]()
    end = 0
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["pull", "take", "ack", "back"]))
        if step == "pull":
            found = [end + i for i in range(data.draw(st.integers(0, 4))) if data.draw(st.booleans())]
            end += 4
            assert queue.put(messages(*found), end) == len(found)
            open_.update(found)
            waiting += found
        elif step == "take":
            got = queue.take_messages(data.draw(st.integers(0, 3)))
            assert offsets(got) == waiting[: len(got)]
            del waiting[: len(got)]
            taken += got
        elif taken:
            chosen = data.draw(st.lists(st.sampled_from(range(len(taken))), unique=True))
            some = [taken[i] for i in sorted(chosen)]
            taken = [one for one in taken if one not in some]
            if step == "ack":
                queue.ack(some)
                settled.update(offsets(some))
                open_.difference_update(offsets(some))
            else:
                some.sort(key=lambda one: one.queue_offset)
                queue.requeue(some)
                waiting = offsets(some) + waiting
        assert queue.committable == min(open_, default=end)
        assert offsets(queue.open_messages()) == sorted(open_)
        assert (queue.count, queue.waiting) == (len(open_), len(waiting))
        assert all(offset >= queue.committable for offset in open_)

"""What a pull consumer hands out and what it may commit, without a broker: positions after every kind of answer."""

from __future__ import annotations

from typing import Any

import pytest

from mqfast.client.consumer.pull.prefetch_buffer import CachedQueue, CacheLimits, PrefetchBuffer
from mqfast.client.consumer.pull_request import PullAnswer
from mqfast.client.delivery import Source
from mqfast.client.values import MessageQueue, PullStatus
from mqfast.errors import ClientClosed, OffsetMoved, UsageError

ONE, TWO = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


class Message:
    """As much of a delivery as the cache looks at."""

    def __init__(self, queue: MessageQueue, offset: int, size: int = 100) -> None:
        self.queue_offset = offset
        self.store_size = size
        self.source = Source("b", queue)


def answer(one: CachedQueue, *offsets: int, to: int | None = None, **more: Any) -> PullAnswer:
    messages: Any = [Message(one.plain, offset) for offset in offsets]
    fields = {"status": PullStatus.FOUND if offsets else PullStatus.NO_MATCHED_MSG, "min_offset": 0, "max_offset": 99}
    fields |= more
    end = offsets[-1] + 1 if to is None else to
    return PullAnswer(messages=messages, next_offset=end, asked_offset=one.next_pull, **fields)


def illegal(one: CachedQueue, low: int, high: int, to: int, **more: Any) -> PullAnswer:
    return PullAnswer(PullStatus.OFFSET_ILLEGAL, [], to, low, high, asked_offset=one.next_pull, **more)


class Changes(list[tuple[MessageQueue, bool]]):
    def __call__(self, queue: MessageQueue, is_new_place: bool) -> None:
        self.append((queue, is_new_place))


def cache_of(*queues: MessageQueue, at: int = 0, is_new: bool = False, reset: str = "error", **limits: int) -> Any:
    changes = Changes()
    cache = PrefetchBuffer("g", reset, CacheLimits(**limits), changes)
    ones = []
    for queue in queues:
        ones.append(cache.add(queue, queue))
        ones[-1].begin(at, is_new=is_new)
    return cache, changes, *ones


def offsets_of(messages: Any) -> list[int]:
    return [message.queue_offset for message in messages]


def handed(cache: PrefetchBuffer) -> dict[MessageQueue, int]:
    return cache.positions(handed_out=True)


def acknowledged(cache: PrefetchBuffer) -> dict[MessageQueue, int]:
    return cache.positions(handed_out=False)


def test_a_poll_hands_out_in_order_and_acknowledges_earlier_messages() -> None:
    cache, _, one = cache_of(ONE)
    cache.put(one, answer(one, 0, 1, 2, 3))
    assert handed(cache) == {ONE: 0}
    assert offsets_of(cache.poll(3)) == [0, 1, 2]
    assert handed(cache) == {ONE: 3}
    assert acknowledged(cache) == {ONE: 0}, "the application has not come back yet"
    cache.acknowledge()
    assert offsets_of(cache.poll(3)) == [3]
    assert acknowledged(cache) == {ONE: 3}
    assert cache.poll(3) == []


def test_queues_come_in_turn() -> None:
    cache, _, one, two = cache_of(ONE, TWO)
    cache.put(one, answer(one, *range(10)))
    cache.put(two, answer(two, *range(10)))
    assert [{message.source.queue for message in cache.poll(5)} for _ in range(4)] == [{TWO}, {ONE}, {TWO}, {ONE}]


def test_filtered_messages_are_acknowledged_but_never_before_others() -> None:
    cache, _, one = cache_of(ONE)
    cache.put(one, answer(one, to=7))  # seven without the tag
    assert handed(cache) == acknowledged(cache) == {ONE: 7}
    cache.put(one, answer(one, 9, 12, to=20))
    assert handed(cache) == acknowledged(cache) == {ONE: 9}
    cache.poll(1)
    assert handed(cache) == {ONE: 12}
    cache.put(one, answer(one, to=30))
    assert handed(cache) == {ONE: 12}, "12 is still here"
    cache.poll(1)
    assert handed(cache) == {ONE: 30}
    assert acknowledged(cache) == {ONE: 9}
    cache.put(one, answer(one, to=40))
    assert acknowledged(cache) == {ONE: 9}, "9 and 12 are with the application"
    cache.acknowledge()
    assert acknowledged(cache) == {ONE: 40}


def test_a_loop_acknowledges_a_message_when_it_asks_for_the_next() -> None:
    cache, changes, one = cache_of(ONE)
    cache.put(one, answer(one, 0, 1, 5, to=8))
    first = cache.next(None)
    assert acknowledged(cache) == {ONE: 0}
    second = cache.next(first)
    assert acknowledged(cache) == {ONE: 1}
    third = cache.next(second)
    assert acknowledged(cache) == {ONE: 5}
    assert cache.next(third) is None
    assert acknowledged(cache) == {ONE: 8}
    assert not changes


def test_a_new_loop_begins_at_the_current_message_of_the_old_loop() -> None:
    cache, changes, one = cache_of(ONE)
    cache.put(one, answer(one, 0, 1, 2))
    cache.next(cache.next(None))
    cache.rewind()
    assert changes == [(ONE, True)]
    assert handed(cache) == acknowledged(cache) == {ONE: 1}
    assert (one.next_pull, cache.count) == (1, 0)
    cache.put(one, answer(one, 1, 2))
    assert cache.next(None).queue_offset == 1


def test_the_answer_of_a_pull_at_an_old_position_is_dropped() -> None:
    cache, changes, one = cache_of(ONE)
    late = answer(one, 0, 1)
    cache.seek(ONE, 50, is_new=False)
    assert changes == [(ONE, True)]
    cache.put(one, late)
    assert cache.poll(9) == []
    cache.put(one, answer(one, 50))
    assert offsets_of(cache.poll(9)) == [50]
    with pytest.raises(UsageError, match="not assigned"):
        cache.seek(TWO, 0, is_new=False)


def test_a_revoked_queue_is_not_handed_out_and_not_committed() -> None:
    cache, _, one, two = cache_of(ONE, TWO)
    cache.put(one, answer(one, 0, 1))
    cache.put(two, answer(two, 0, 1))
    held = cache.next(None)
    assert cache.remove(held.source.queue).acknowledged == 0
    left = TWO if held.source.queue == ONE else ONE
    cache.put(one, answer(one, 2))
    message = cache.next(held)
    assert message.source.queue == left
    assert handed(cache) == {left: 1}
    assert cache.remove(ONE if left == TWO else TWO) is None
    with pytest.raises(UsageError, match="not assigned to this consumer"):
        cache.check({held.source.queue: 0})


def test_deleted_messages_raise_offset_moved_after_the_messages_before() -> None:
    cache, _, one = cache_of(ONE, at=5)
    cache.put(one, answer(one, 5))
    words = cache.put(one, illegal(one, 20, 30, 20))
    assert "14 messages from there on were deleted" in words
    assert offsets_of(cache.poll(9)) == [5]
    for _ in range(2):
        with pytest.raises(OffsetMoved) as moved:
            cache.poll(9)
        error = moved.value
        assert (error.group, error.offset, error.min_offset, error.max_offset, error.queue) == ("g", 6, 20, 30, ONE)
        assert "seek(MessageQueue(topic='t', broker_name='b', queue_id=0), 20) goes on" in str(error)
    with pytest.raises(OffsetMoved):
        cache.next(None)
    cache.seek(ONE, 20, is_new=False)
    cache.put(one, answer(one, 20))
    assert offsets_of(cache.poll(9)) == [20]


def test_messages_under_deletion_raise_offset_moved_as_well() -> None:
    cache, _, one = cache_of(ONE, at=5)
    gone = {"status": PullStatus.NO_MATCHED_MSG, "remark": "MESSAGE_WAS_REMOVING", "min_offset": 5}
    assert "deleted" in cache.put(one, answer(one, to=9, **gone))
    with pytest.raises(OffsetMoved) as moved:
        cache.poll(1)
    assert (moved.value.offset, moved.value.min_offset) == (5, 9)


def test_an_offset_beyond_the_end_of_the_queue_raises_offset_moved() -> None:
    cache, _, one = cache_of(ONE, at=50)
    cache.put(one, illegal(one, 0, 10, 10))
    with pytest.raises(OffsetMoved, match="the queue ends before it"):
        cache.poll(1)


@pytest.mark.parametrize(("reset", "to"), [("earliest", 20), ("latest", 30)])
def test_offset_reset_latest_or_earliest_continues_with_a_warning(reset: str, to: int) -> None:
    cache, _, one = cache_of(ONE, at=5, reset=reset)
    assert f"it goes on at {to}" in cache.put(one, illegal(one, 20, 30, 20))
    assert (handed(cache), one.next_pull) == ({ONE: to}, to)


def test_a_new_group_begins_at_the_first_stored_message() -> None:
    cache, _, one = cache_of(ONE, at=0, is_new=True)
    assert cache.put(one, illegal(one, 20, 30, 20)) == ""
    assert handed(cache) == {ONE: 20}
    cache.put(one, answer(one, 20))
    cache.put(one, illegal(one, 40, 50, 40))
    cache.poll(1)
    with pytest.raises(OffsetMoved):
        cache.poll(1)


@pytest.mark.parametrize("words", ["OFFSET_RESET", ""])
def test_an_offset_that_an_admin_reset_is_followed(words: str) -> None:
    cache, _, one = cache_of(ONE, at=25)
    cache.put(one, answer(one, 25, 26))
    assert "was reset to 22" in cache.put(one, illegal(one, 20, 30, 22, remark=words))
    assert handed(cache) == acknowledged(cache) == {ONE: 22}
    assert cache.count == 0


@pytest.mark.parametrize("limits", [{"messages": 4}, {"bytes": 400}, {"total": 4}])
def test_pulls_continue_when_the_prefetch_buffer_has_room(limits: dict[str, int]) -> None:
    cache, changes, one = cache_of(ONE, **limits)
    cache.put(one, answer(one, 0, 1, 2, 3))
    assert cache.is_full(one)
    one.waits = True
    cache.poll(1)
    assert changes == [(ONE, False)]
    assert not cache.is_full(one)
    cache.poll(1)
    assert changes == [(ONE, False)], "told once"


def test_only_what_was_handed_out_may_be_committed() -> None:
    cache, _, one = cache_of(ONE)
    cache.put(one, answer(one, 0, 1, 2))
    cache.poll(2)
    cache.check({ONE: 2})
    cache.check({ONE: 0})
    for wrong in (3, -1):
        with pytest.raises(UsageError, match=rf"expected an offset of 0 to 2, found {wrong}"):
            cache.check({ONE: wrong})
    fresh = cache.add(TWO, TWO)
    cache.check({TWO: 2})  # nothing was handed out: as Java's and Kafka's consumers take it
    with pytest.raises(UsageError, match="expected an offset of 0 or more, found -1"):
        cache.check({TWO: -1})
    assert fresh.queue not in handed(cache), "where the group is there is not known yet"


def test_a_closed_prefetch_buffer_hands_nothing_out() -> None:
    cache, _, one = cache_of(ONE)
    cache.put(one, answer(one, 0))
    cache.close("it is closed")
    for call in (lambda: cache.poll(1), lambda: cache.next(None)):
        with pytest.raises(ClientClosed, match="it is closed"):
            call()


def test_a_repeated_pull_error_is_reported_once() -> None:
    cache, _, one = cache_of(ONE)
    assert cache.fail(one, OSError("no"))
    assert not cache.fail(one, OSError("no"))
    assert cache.fail(one, OSError("other"))
    cache.put(one, answer(one, 0))
    assert one.error is None


def test_a_new_expression_drops_cached_messages_and_keeps_the_offsets() -> None:
    cache, changes, one = cache_of(ONE)
    cache.put(one, answer(one, 0, 1, 2))
    cache.poll(1)
    cache.reread("t")
    assert changes == [(ONE, True)]
    assert (handed(cache), acknowledged(cache), one.next_pull) == ({ONE: 1}, {ONE: 0}, 1)
    assert cache.poll(9) == []
    cache.put(one, answer(one, 1))
    assert offsets_of(cache.poll(9)) == [1]

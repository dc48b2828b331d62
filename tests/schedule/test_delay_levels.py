"""What DELAY does to a message: bytes as Java makes them, levels, and what is left alone.

Room: tests/schedule.
"""

from __future__ import annotations

import pytest
from clocked import golden_records
from conftest import golden_cases

from mqfast import properties as names
from mqfast.config import StoreConfig
from mqfast.errors import MessageIllegal, PropertiesTooLong
from mqfast.schedule.delay_levels import SCHEDULE_TOPIC, DelayLevels, real_place

LEVELS = DelayLevels(StoreConfig().delay_levels_ms)


def test_the_levels_are_those_of_rocketmq() -> None:
    minute = 60_000
    expected = [1000, 5000, 10_000, 30_000, *(n * minute for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120))]
    assert list(LEVELS.delays_ms) == expected
    assert [LEVELS.delay_ms(level) for level in (1, 18)] == [1000, 120 * minute]
    assert LEVELS.delay_ms(19) == LEVELS.delay_ms(0) == 1000
    assert StoreConfig.from_kwargs(message_delay_level="1s 2m 3h 1d").delay_levels_ms == (
        1000, 120_000, 10_800_000, 86_400_000,
    )  # fmt: skip


@pytest.mark.parametrize("release", ["5.3.3", "5.5.0"])
def test_parked_properties_have_javas_bytes(release: str) -> None:
    """The golden record without what parking adds, parked again, is the golden record."""
    seen = 0
    (case,) = golden_cases(release, ("normal-clean",))
    for topic, record in golden_records(case):
        if topic != SCHEDULE_TOPIC:
            continue
        pairs = record.properties
        real_topic, real_queue = pairs.pop(names.REAL_TOPIC), int(pairs.pop(names.REAL_QID))
        place = LEVELS.park(real_topic, real_queue, names.encode(pairs))
        assert place == (SCHEDULE_TOPIC, record.queue_id, record.properties_bytes)
        assert real_place(record.properties) == (real_topic, real_queue)
        seen += 1
    assert seen >= 5


def test_a_level_above_the_last_is_the_last() -> None:
    place = LEVELS.park("T", 3, names.encode({"DELAY": 99, "KEYS": "k"}))
    assert place is not None
    assert place.queue_id == 17
    assert names.decode(place.properties) == {"DELAY": "18", "KEYS": "k", "REAL_TOPIC": "T", "REAL_QID": "3"}


@pytest.mark.parametrize("text", [b"", b"KEYS\x01DELAY\x02", b"DELAY\x010\x02", b"DELAY\x01-1\x02", b"XDELAY\x013\x02",
                                  b"TIMER_DELAY_SEC\x013\x02"])  # fmt: skip
def test_a_message_without_delay_is_unchanged(text: bytes) -> None:
    assert LEVELS.park("T", 0, text) is None


@pytest.mark.parametrize("sys_flag", [4, 12])
def test_prepared_and_rolled_back_transactions_are_never_parked(sys_flag: int) -> None:
    assert LEVELS.park("T", 0, b"DELAY\x013\x02", sys_flag) is None
    assert LEVELS.park("T", 0, b"DELAY\x013\x02", 8) is not None


def test_the_level_wins_over_the_timer() -> None:
    text = names.encode(
        {"DELAY": 2, "TIMER_DELAY_SEC": 9, "TIMER_DELAY_MS": 9, "TIMER_DELIVER_MS": 9, "TIMER_OUT_MS": 9}
    )
    place = LEVELS.park("T", 0, text)
    assert place is not None
    assert names.decode(place.properties) == {"DELAY": "2", "TIMER_OUT_MS": "9", "REAL_TOPIC": "T", "REAL_QID": "0"}


def test_a_delay_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(MessageIllegal, match="DELAY: expected a whole number, found 'soon'"):
        LEVELS.park("T", 0, b"DELAY\x01soon\x02")


def test_properties_that_become_too_long_are_refused() -> None:
    with pytest.raises(PropertiesTooLong):
        LEVELS.park("T" * 100, 0, names.encode({"DELAY": 1, "x": "y" * 32_700}))


@pytest.mark.parametrize("pairs", [{}, {"REAL_TOPIC": "T"}, {"REAL_QID": "1"}, {"REAL_TOPIC": "T", "REAL_QID": "-1"},
                                   {"REAL_TOPIC": "T", "REAL_QID": "one"}])  # fmt: skip
def test_a_parked_message_without_real_topic_has_no_destination(pairs: dict[str, str]) -> None:
    assert real_place(pairs) is None

"""Which messages the timer takes, for when, and which it refuses. Room: tests/schedule."""

from __future__ import annotations

from typing import Any

import pytest

from mqfast import properties as names
from mqfast.errors import PropertiesTooLong
from mqfast.schedule.delay_levels import QueuePosition
from mqfast.schedule.timer.accept import accept
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.store.base.results import PutMessageStatus
from mqfast.store.reader.timer_files import TIMER_TOPIC

NOW = 1_700_000_000_400
ILLEGAL = PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL
SETTINGS = TimerSettings()


def ask(
    fields: dict[str, Any],
    *,
    settings: TimerSettings = SETTINGS,
    topic: str = "T",
    sys_flag: int = 0,
    crowded: bool = False,
) -> QueuePosition | PutMessageStatus | None:
    return accept(settings, lambda _ms, _draw: crowded, topic, 5, names.encode(fields), sys_flag, NOW)


@pytest.mark.parametrize(
    ("fields", "out_ms"),
    [
        ({"TIMER_DELIVER_MS": NOW + 5000}, 1_700_000_005_000),
        ({"TIMER_DELIVER_MS": 1_700_000_005_000}, 1_700_000_004_000),  # the second that ends there
        ({"TIMER_DELIVER_MS": 1_700_000_005_001}, 1_700_000_005_000),
        ({"TIMER_DELAY_MS": 1}, 1_700_000_000_000),
        ({"TIMER_DELAY_MS": "+600"}, 1_700_000_000_000),
        ({"TIMER_DELAY_SEC": 5}, 1_700_000_005_000),
        ({"TIMER_DELAY_SEC": 259_200}, 1_700_259_200_000),
        ({"TIMER_DELAY_SEC": 5, "TIMER_DELAY_MS": 99_000, "TIMER_DELIVER_MS": 7}, 1_700_000_005_000),
        ({"TIMER_DELAY_MS": 5000, "TIMER_DELIVER_MS": 7}, 1_700_000_005_000),
        ({"TIMER_DELAY_SEC": 5, "DELAY": 0}, 1_700_000_005_000),
        ({"TIMER_DELAY_SEC": 5, "DELAY": "x"}, 1_700_000_005_000),
        ({"TIMER_DELAY_SEC": 5, "TIMER_DEL_UNIQKEY": "k"}, 1_700_000_005_000),
    ],
)  # fmt: skip
def test_when_a_message_is_due(fields: dict[str, Any], out_ms: int) -> None:
    place = ask(fields)
    assert isinstance(place, QueuePosition)
    assert (place.topic, place.queue_id) == (TIMER_TOPIC, 0)
    kept = {name: str(value) for name, value in fields.items()}
    assert names.decode(place.properties) == {
        **kept, "TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "T", "REAL_QID": "5",
    }  # fmt: skip
    assert place.properties == names.encode(names.decode(place.properties))


@pytest.mark.parametrize("precision_ms", [100, 250, 1000, 5000])
def test_the_slot_ends_when_the_message_is_due_or_less_than_a_step_later(precision_ms: int) -> None:
    settings = TimerSettings(precision_ms=precision_ms)
    for due in range(NOW + 1, NOW + 12_000, 37):
        place = ask({"TIMER_DELIVER_MS": due}, settings=settings)
        assert isinstance(place, QueuePosition)
        out_ms = int(names.decode(place.properties)["TIMER_OUT_MS"])
        assert out_ms % precision_ms == 0
        assert due <= out_ms + precision_ms < due + precision_ms


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"TIMER_OUT_MS": 5}, {"TIMER_DELAY_SEC": 0}, {"TIMER_DELAY_SEC": -5}, {"TIMER_DELIVER_MS": NOW},
        {"TIMER_DELIVER_MS": 0}, {"TIMER_DEL_UNIQKEY": "k"}, {"TIMER_DELAY_SEC": 5, "TIMER_OUT_MS": 9},
        {"TIMER_DELAY_SEC": 5, "DELAY": 3}, {"note": "TIMER_DELAY_SEC"},
    ],
)  # fmt: skip
def test_messages_that_are_stored_as_they_are(fields: dict[str, Any]) -> None:
    assert ask(fields) is None


def test_prepared_and_rolled_back_transactions_and_the_timers_own_messages_are_left_alone() -> None:
    fields = {"TIMER_DELAY_SEC": 5}
    assert ask(fields, sys_flag=4) is None
    assert ask(fields, sys_flag=12) is None
    assert isinstance(ask(fields, sys_flag=8), QueuePosition)
    assert ask(fields, topic=TIMER_TOPIC) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"TIMER_DELAY_SEC": 259_201}, {"TIMER_DELAY_MS": 259_200_001}, {"TIMER_DELIVER_MS": NOW + 259_200_001},
        {"TIMER_DELAY_SEC": "soon"}, {"TIMER_DELAY_SEC": "1.5"}, {"TIMER_DELIVER_MS": 1 << 63},
        {"TIMER_DELAY_SEC": (1 << 63) - 1}, {"TIMER_DELIVER_MS": NOW, "TIMER_DEL_UNIQKEY": "k"},
    ],
)  # fmt: skip
def test_messages_that_are_refused(fields: dict[str, Any]) -> None:
    assert ask(fields) is ILLEGAL


def test_a_timer_that_is_off_or_crowded_refuses() -> None:
    fields = {"TIMER_DELAY_SEC": 5}
    off = TimerSettings(is_enabled=False)
    assert ask(fields, settings=off) is PutMessageStatus.WHEEL_TIMER_NOT_ENABLE
    assert ask({"DELAY": 3, **fields}, settings=off) is None
    assert ask(fields, crowded=True) is PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL


def test_properties_without_room_for_the_place_are_an_error() -> None:
    long = "x" * (names.MAX_PROPERTIES_BYTES - 40)
    with pytest.raises(PropertiesTooLong):
        ask({"TIMER_DELAY_SEC": 5, "long": long})

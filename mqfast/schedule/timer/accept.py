"""The decision about a message with a delivery time: parked, stored unchanged, or refused.

No message is stored here: the caller of a put applies the result. Source: HookUtils.checkIfTimerMessage,
HookUtils.transformTimerMessage.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from mqfast import properties as names
from mqfast.schedule.delay_levels import QueuePosition
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.store.base.results import PutMessageStatus
from mqfast.store.reader.timer_files import TIMER_TOPIC
from mqfast.util.java_text import java_number

__all__ = ["accept", "delivery_time"]

_LONG_MAX: Final = 2**63 - 1
_MARK: Final = b"TIMER_DEL"  # common to all three names
_TRANSACTION_MASK: Final = 12
_COMMITTED: Final = 8


def _draw() -> int:
    return random.randrange(1000)


def delivery_time(fields: dict[str, str], now_ms: int) -> int | None:
    """Return the delivery time of a message, ms since the epoch, from the first present of three properties.

    Returns: None for a value that is no number, or beyond any time.
    """
    for name, unit_ms in ((names.TIMER_DELAY_SEC, 1000), (names.TIMER_DELAY_MS, 1), (names.TIMER_DELIVER_MS, 0)):
        text = fields.get(name)
        if text is not None:
            number = java_number(text, _LONG_MAX)
            if number is None:
                return None
            return number if not unit_ms else now_ms + number * unit_ms
    return None


def accept(
    settings: TimerSettings,
    is_crowded: Callable[[int, Callable[[], int]], bool],
    topic: str,
    queue_id: int,
    properties: bytes,
    sys_flag: int,
    now_ms: int,
    draw: Callable[[], int] = _draw,
) -> QueuePosition | PutMessageStatus | None:
    """Decide where a message with a delivery time is parked.

    Args: is_crowded: ``TimerService.is_crowded``; draw: a random number from 0 to 999.
    Returns: the queue of the timer; a status that refuses the message: WHEEL_TIMER_NOT_ENABLE, WHEEL_TIMER_MSG_ILLEGAL
        (no number, beyond the longest delay, a delete of a due message) or WHEEL_TIMER_FLOW_CONTROL; None: the message
        is stored unchanged.
    Raises: MessageIllegal if the properties become too long.
    """
    if _MARK not in properties or sys_flag & _TRANSACTION_MASK not in (0, _COMMITTED) or topic == TIMER_TOPIC:
        return None
    fields = names.decode(properties)
    if (java_number(fields.get(names.DELAY, "0")) or 0) > 0 or names.TIMER_OUT_MS in fields:
        return None
    if fields.keys().isdisjoint((names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)):
        return None
    if not settings.is_enabled:
        return PutMessageStatus.WHEEL_TIMER_NOT_ENABLE
    due_ms = delivery_time(fields, now_ms)
    if due_ms is None or due_ms - now_ms > settings.max_delay_s * 1000:
        return PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL
    if due_ms <= now_ms:
        return PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL if names.TIMER_DEL_UNIQKEY in fields else None
    # The slot is read when its whole step is over.
    out_ms = (due_ms - 1) // settings.precision_ms * settings.precision_ms
    if is_crowded(out_ms, draw):
        return PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL
    fields[names.TIMER_OUT_MS] = str(out_ms)
    fields[names.REAL_TOPIC] = topic
    fields[names.REAL_QID] = str(queue_id)
    return QueuePosition(TIMER_TOPIC, 0, names.encode(fields))

"""POP before a truncation of a slave's log, whose broker was a master: the tables forget what only the cut part proves.

A group's offset passes messages that check-points cover, and the progress of the revive topic passes check-points whose
acks and retries are in the log. Batches of orderly POP name offsets at which other messages follow. A master after this
broker may not know these groups, so its tables do not correct the offsets. Messages may then be repeated; none is lost.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqfast import properties as names
from mqfast.broker.metadata.topic_manager import TIMER_TOPIC
from mqfast.broker.pop.check_point import CHECK_POINT, REVIVE_GROUP, Batch, decode_check_point, revive_topic
from mqfast.broker.pop.retry_message import message_at
from mqfast.errors import CorruptFile, FieldError

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["forget_cut_part"]

_log = logging.getLogger("mqfast.broker")


def forget_cut_part(context: BrokerContext, end: int) -> None:
    """Lower the offsets of groups to the check-points at or behind ``end``, and begin the revive topic again.

    Raises: StorageError. Thread: that of the event loop. Durability: on the disk when the call returns.
    """
    offsets = context.offsets
    for batch in _check_points(context, end):
        if offsets.get(batch.group, batch.topic, batch.queue_id) > batch.start:
            _log.warning(
                "group %s, topic %s, queue %d: the check-point of offset %d is cut, the group goes on there",
                batch.group, batch.topic, batch.queue_id, batch.start,
            )  # fmt: skip
            offsets.commit(batch.group, batch.topic, batch.queue_id, batch.start)
    offsets.remove_group(REVIVE_GROUP)
    context.tables.persist()


def _check_points(context: BrokerContext, end: int) -> Iterator[Batch]:
    """Yield the check-points at or behind a physical offset, but no copy of an earlier record."""
    topic, broker = revive_topic(context.config["brokerClusterName"]), context.config["brokerName"]
    for name, queue_id, first, after_last in context.store.queues():
        if name not in (TIMER_TOPIC, topic):
            continue
        units = range(first, after_last)
        behind = bisect.bisect_left(
            units, end, key=lambda number: context.engine.unit_at(name, queue_id, number).physical_offset
        )
        for number in units[behind:]:
            try:
                message = message_at(context, name, queue_id, number)
                if message is not None and _is_check_point(message.properties, name, topic):
                    yield decode_check_point(bytes(message.body), queue_id, broker)
            except (CorruptFile, FieldError) as error:
                _log.warning("record %d of %s is left out of a truncation: %s", number, name, error)


def _is_check_point(pairs: dict[str, str], topic: str, revive: str) -> bool:
    """Return True for a check-point that is parked, or was due at once; False for one that the wheel has delivered."""
    if topic == TIMER_TOPIC:
        is_first = pairs.get(names.REAL_TOPIC) == revive
    else:
        is_first = names.TIMER_OUT_MS not in pairs
    return is_first and pairs.get(names.TAGS) == CHECK_POINT

"""What a get of the store is told about a consumer's filter: a test of queue units.

Tags are compared by their hash codes, as every broker does; the client compares the texts. An SQL92 expression needs
the properties of each record.

Room: broker/pull/filter. It must never leave a message out whose filter is not known. Source: ExpressionMessageFilter,
FilterAPI.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from mqfast import properties
from mqfast.broker.clients.heartbeat import Subscription
from mqfast.broker.pull.filter.sql import SqlExpression
from mqfast.errors import UsageError
from mqfast.store.engine import QueueUnit, TagCodes, UnitFilter

__all__ = ["WantedUnits", "by_subscription", "by_tags", "sql_units"]

WantedUnits = UnitFilter | Callable[[QueueUnit], bool] | None
"""A filter of units; None: all of them."""

_ALL = "*"


@functools.lru_cache(maxsize=1024)
def by_tags(expression: str | None) -> WantedUnits:
    """The filter of an expression as ``"A || B"``. Raises: UsageError where it names no tag."""
    try:
        codes = properties.tag_codes(expression)
    except UnicodeEncodeError:
        raise UsageError(f"tag expression: expected text that has a UTF-8 form, found {expression!r:.80}") from None
    return None if codes is None else TagCodes(codes)


def by_subscription(subscription: Subscription) -> WantedUnits:
    """The filter of a heartbeat's subscription by tags."""
    if subscription.class_filter_mode or subscription.sub_string == _ALL:
        return None
    if subscription.code_set:
        return _by_codes(tuple(subscription.code_set))
    return by_tags(subscription.sub_string)  # a client that sends no codes


@functools.lru_cache(maxsize=1024)
def _by_codes(codes: tuple[int, ...]) -> WantedUnits:
    return TagCodes([_signed(code) for code in codes])


def _signed(code: int) -> int:
    return (code + 2**31) % 2**32 - 2**31


def sql_units(expression: SqlExpression) -> WantedUnits:
    """The filter of an SQL92 expression."""
    wants = expression.wants

    def test(unit: QueueUnit) -> bool:
        return wants(unit.record.properties_bytes)

    return test

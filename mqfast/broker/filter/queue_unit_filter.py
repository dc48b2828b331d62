"""The filter of a consumer as a test of queue units, for gets of the store.

Tags are compared by hash codes, as in every broker; the client compares the texts. An SQL92 expression needs the
properties of each record. Without a known filter no message is left out. Source: ExpressionMessageFilter, FilterAPI.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from mqfast import properties
from mqfast.broker.filter.sql92_parser import SqlExpression
from mqfast.errors import UsageError
from mqfast.remoting.heartbeat import SubscriptionData
from mqfast.store.engine import QueueUnit, TagCodes, UnitFilter

__all__ = ["SqlUnits", "WantedUnits", "by_subscription", "by_tags"]

WantedUnits = UnitFilter | Callable[[QueueUnit], bool] | None
"""A filter of units; None: all units."""

_ALL: Final = "*"
_KEPT_CHARS_MAX: Final = 1000
_KEPT_CODES_MAX: Final = 100


def by_tags(expression: str | None) -> WantedUnits:
    """Return the filter of an expression such as ``"A || B"``. Raises: UsageError for an expression without a tag."""
    if expression is not None and len(expression) > _KEPT_CHARS_MAX:
        return _tags.__wrapped__(expression)
    return _tags(expression)


@functools.lru_cache(maxsize=1024)
def _tags(expression: str | None) -> WantedUnits:
    try:
        codes = properties.tag_codes(expression)
    except UnicodeEncodeError:
        raise UsageError(f"tag expression: expected text that has a UTF-8 form, found {expression!r:.80}") from None
    return None if codes is None else TagCodes(codes)


def by_subscription(subscription: SubscriptionData) -> WantedUnits:
    """Return the filter of a subscription by tags in a heartbeat."""
    if subscription.class_filter_mode or subscription.sub_string == _ALL:
        return None
    if subscription.code_set:
        codes = tuple(subscription.code_set)
        return _by_codes(codes) if len(codes) <= _KEPT_CODES_MAX else _by_codes.__wrapped__(codes)
    return by_tags(subscription.sub_string)  # a client that sends no codes


@functools.lru_cache(maxsize=1024)
def _by_codes(codes: tuple[int, ...]) -> WantedUnits:
    return TagCodes([_signed(code) for code in codes])


def _signed(code: int) -> int:
    return (code + 2**31) % 2**32 - 2**31


class SqlUnits:
    """The filter of an SQL92 expression.

    Attributes: tokens: cost of the test of a message.
    """

    __slots__ = ("_wants", "tokens")

    def __init__(self, expression: SqlExpression) -> None:
        self.tokens = expression.tokens
        self._wants = expression.wants

    def __call__(self, unit: QueueUnit) -> bool:
        """Return True if the message of this unit matches."""
        return self._wants(unit.record.properties_bytes)

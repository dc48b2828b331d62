"""The meaning of a handler's result for its messages: acknowledged, or delivered again.

An exception always means a later delivery.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from collections.abc import Set as AnySet
from typing import Any, NamedTuple

from mqfast.client.delivery import Delivery
from mqfast.client.values import ConsumeStatus, Retry

__all__ = ["Verdict", "verdict"]


class Verdict(NamedTuple):
    """``done``: acknowledged messages; ``later``: messages to deliver again, with delay levels; ``odd``: describes a
    result without a meaning.
    """

    done: Sequence[Delivery]
    later: Sequence[tuple[Delivery, int]] = ()
    odd: str = ""

    @property
    def status(self) -> ConsumeStatus:
        """Return the status for hooks and admins."""
        return ConsumeStatus.RECONSUME_LATER if self.later else ConsumeStatus.CONSUME_SUCCESS


def verdict(messages: Sequence[Delivery], result: Any, error: BaseException | None, *, is_batch: bool) -> Verdict:
    """Interpret the end of a handler.

    Args: result: the return value; error: the exception, or None; is_batch: the argument was a list.
    """
    if error is not None:
        level = error.delay_level if isinstance(error, Retry) else 0
        odd = ""
        if type(level) is not int or not -1 <= level <= 18:
            odd, level = f"Retry(delay_level={level!r}), where -1 to 18 was expected: the broker's schedule is used", 0
        return Verdict((), [(message, level) for message in messages], odd)
    if result is None or result is True or result is ConsumeStatus.CONSUME_SUCCESS:
        return Verdict(messages)
    if result is False or result is ConsumeStatus.RECONSUME_LATER:
        return Verdict((), [(message, 0) for message in messages])
    if is_batch and type(result) is int:  # ackIndex: the last acknowledged message
        cut = max(0, result + 1)
        return Verdict(messages[:cut], [(message, 0) for message in messages[cut:]])
    if is_batch and isinstance(result, AnySet) and all(type(index) is int for index in result):
        done = [message for i, message in enumerate(messages) if i not in result]
        strange = sorted(index for index in result if not 0 <= index < len(messages))
        odd = f"the indices {strange}, where 0 to {len(messages) - 1} was expected" if strange else ""
        return Verdict(done, [(message, 0) for i, message in enumerate(messages) if i in result], odd)
    if inspect.iscoroutine(result):  # the coroutine has not run: no message is acknowledged
        result.close()
        odd = "a coroutine, which needs AsyncPushConsumer: nothing of it ran, the messages come again"
        return Verdict((), [(message, 0) for message in messages], odd)
    return Verdict(messages, (), f"{type(result).__name__}: None, True or False was expected; it counts as done")

"""What the end of a handler means for its messages.

Room: client. It must never do I/O. A message is done only when the handler said so or returned; every exception means
"later".
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
    """``done``: what is settled; ``later``: messages and the delay level of each; ``odd``: the handler returned
    something that has no meaning, described.
    """

    done: Sequence[Delivery]
    later: Sequence[tuple[Delivery, int]] = ()
    odd: str = ""

    @property
    def status(self) -> ConsumeStatus:
        """What hooks and admins are told."""
        return ConsumeStatus.RECONSUME_LATER if self.later else ConsumeStatus.CONSUME_SUCCESS


def verdict(messages: Sequence[Delivery], result: Any, error: BaseException | None, *, is_batch: bool) -> Verdict:
    """Judge the end of a handler.

    Args: result: what it returned; error: what it raised, None for nothing; is_batch: it got a list.
    """
    if error is not None:
        level = error.delay_level if isinstance(error, Retry) else 0
        odd = ""
        if type(level) is not int or not -1 <= level <= 18:
            odd, level = f"Retry(delay_level={level!r}), where -1 to 18 was expected: the broker's schedule is used", 0
        return Verdict((), [(one, level) for one in messages], odd)
    if result is None or result is True or result is ConsumeStatus.CONSUME_SUCCESS:
        return Verdict(messages)
    if result is False or result is ConsumeStatus.RECONSUME_LATER:
        return Verdict((), [(one, 0) for one in messages])
    if is_batch and type(result) is int:  # ackIndex: the last message that is done
        cut = max(0, result + 1)
        return Verdict(messages[:cut], [(one, 0) for one in messages[cut:]])
    if is_batch and isinstance(result, AnySet) and all(type(one) is int for one in result):
        done = [one for i, one in enumerate(messages) if i not in result]
        strange = sorted(one for one in result if not 0 <= one < len(messages))
        odd = f"the indices {strange}, where 0 to {len(messages) - 1} was expected" if strange else ""
        return Verdict(done, [(one, 0) for i, one in enumerate(messages) if i in result], odd)
    if inspect.iscoroutine(result):  # nothing of it has run: no message may count as done
        result.close()
        odd = "a coroutine, which needs AsyncPushConsumer: nothing of it ran, the messages come again"
        return Verdict((), [(one, 0) for one in messages], odd)
    return Verdict(messages, (), f"{type(result).__name__}: None, True or False was expected; it counts as done")

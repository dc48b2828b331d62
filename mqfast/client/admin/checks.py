"""Checks of the arguments of administration before any request: names, numbers, times.

An error names the argument, the expected value with its limit, the actual value, and the nearest name where there is
one. Source: TopicValidator, Validators.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from mqfast.client.values import MessageQueue
from mqfast.errors import ClientConfigError, UnknownName
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX
from mqfast.util import validate
from mqfast.util.near_names import near_names
from mqfast.util.validate import is_whole

__all__ = [
    "MILLISECONDS_LEAST", "checked_flag", "checked_group", "checked_name", "checked_number", "checked_pairs",
    "checked_perm", "checked_queue", "checked_text", "checked_topic", "known_name", "milliseconds", "nearest",
]  # fmt: skip

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_TOPIC_MAX, _GROUP_MAX, _RETRY_OR_DLQ_MAX = 127, 120, 255
_BITS: Final = {"r": 4, "w": 2, "i": 1}
MILLISECONDS_LEAST: Final = 10**12
"""2001-09-09. A smaller number is no time in ms: seconds, or an offset."""
_NAMES_SHOWN: Final = 8
_WORDS: Final = ("changes", "kind", "settings")  # arguments that name no topic, group, broker or cluster
_I64_MAX: Final = 2**63 - 1


def nearest(name: str, known: Collection[str]) -> str:
    """Return ``; the nearest name is 'x'`` for an error text, or an empty text."""
    near = near_names(name, known)
    return f"; the nearest name is {near[0]!r}" if near else ""


def known_name(what: str, name: object, known: Collection[str]) -> str:
    """Check that a name is known, and return it.

    Raises: UnknownName for an unknown topic, group, broker or cluster; ConfigError for a setting, a kind, another type.
    """
    name = checked_text(what, name)
    if name not in known:
        few = ", ".join(sorted(known)) if len(known) <= _NAMES_SHOWN else f"{len(known)} names"
        kind = ClientConfigError if what in _WORDS else UnknownName
        raise kind(f"{what}: expected one of {few or 'none'}; found {name!r}{nearest(name, known)}")
    return name


def checked_text(what: str, given: object) -> str:
    """Return a checked text. Raises: ConfigError."""
    return validate.checked_text(what, given, error=ClientConfigError)


def checked_queue(queue: object) -> MessageQueue:
    """Return a checked queue. Raises: ConfigError."""
    if isinstance(queue, tuple) and len(queue) == 3:
        topic, broker_name, queue_id = queue
        if isinstance(topic, str) and isinstance(broker_name, str) and type(queue_id) is int and queue_id >= 0:
            return MessageQueue(topic, broker_name, queue_id)
    raise ClientConfigError(f"queue: expected a MessageQueue(topic, broker_name, queue_id), found {queue!r}")


def checked_name(what: str, name: object, max_chars: int) -> str:
    """Return a name that brokers accept. Raises: ConfigError."""
    name = checked_text(what, name)
    if not 0 < len(name) <= max_chars:
        raise ClientConfigError(f"{what}: expected 1 to {max_chars} characters, found {len(name)}: {name[:40]!r}")
    if _LEGAL.fullmatch(name) is None:
        wrong = sorted({c for c in name if _LEGAL.fullmatch(c) is None})
        raise ClientConfigError(
            f"{what}: expected letters, digits and % | - _ only, found {''.join(wrong)!r} in {name!r}"
        )
    return name


def checked_topic(topic: object) -> str:
    """Return the name of a topic. Raises: ConfigError."""
    is_of_group = str(topic).startswith((RETRY_PREFIX, DLQ_PREFIX))
    return checked_name("topic", topic, _RETRY_OR_DLQ_MAX if is_of_group else _TOPIC_MAX)


def checked_group(group: object, what: str = "group") -> str:
    """Return the name of a group. Raises: ConfigError."""
    return checked_name(what, group, _GROUP_MAX)


def checked_number(what: str, number: object, minimum: int, maximum: int) -> int:
    """Return a whole number within its limits. Raises: ConfigError."""
    return validate.checked_whole(what, number, minimum, maximum, error=ClientConfigError)


def checked_flag(what: str, flag: object) -> bool:
    """Return True or False. Raises: ConfigError."""
    return validate.checked_flag(what, flag, error=ClientConfigError)


def checked_perm(perm: object) -> int:
    """Return the permission bits of ``r``, ``w``, ``rw`` (and ``i``: topics made by a send inherit). Raises:
    ConfigError.
    """
    if not isinstance(perm, str) or not perm or set(perm) - set(_BITS) or len(set(perm)) != len(perm):
        raise ClientConfigError(f"perm: expected 'rw', 'r' or 'w', found {perm!r}")
    return sum(_BITS[letter] for letter in perm)


def milliseconds(what: str, when: object) -> int:
    """Return a time in ms since the epoch; a datetime without a zone is local time. Raises: ConfigError."""
    if isinstance(when, datetime):
        try:
            return max(0, round(when.timestamp() * 1000))
        except (OverflowError, OSError, ValueError) as error:
            raise ClientConfigError(
                f"{what}: expected a time that a clock of this machine has, found {when!r}: {error}"
            ) from None
    if not is_whole(when):
        raise ClientConfigError(
            f"{what}: expected a datetime or ms since the epoch, found {type(when).__name__} {when!r}"
        )
    if when == 0 or MILLISECONDS_LEAST <= when <= _I64_MAX:
        return when
    raise ClientConfigError(
        f"{what}: expected ms since the epoch (0, or {MILLISECONDS_LEAST} and above), found {when}: "
        f"{'seconds need a factor of 1000' if when > 10**9 else 'a time may also be a datetime'}"
    )


def checked_pairs(what: str, changes: object) -> dict[str, str]:
    """Return settings as texts: booleans as Java writes them, numbers as digits. Raises: ConfigError."""
    if not isinstance(changes, Mapping) or not changes:
        raise ClientConfigError(f"{what}: expected a mapping of names to values, found {changes!r}")
    texts: dict[str, str] = {}
    for name, value in changes.items():
        if not isinstance(name, str) or not name or re.search(r"[\s=:#!\\]", name):
            raise ClientConfigError(f"{what}: expected names of settings, found {name!r}")
        if isinstance(value, bool):
            texts[name] = str(value).lower()
        elif isinstance(value, (int, str)):
            texts[name] = str(value)
        else:
            raise ClientConfigError(
                f"{what}: {name}: expected a text, a number or a bool, found {type(value).__name__}"
            )
        if re.search(r"[\r\n]", texts[name]):
            raise ClientConfigError(f"{what}: {name}: expected one line, found {value!r}")
    return texts

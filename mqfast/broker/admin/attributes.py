"""Attributes of topics and groups: names, permitted values, and changes by requests.

The module has no state. Texts are RocketMQ's. Source: AttributeParser, AttributeUtil, TopicAttributes,
SubscriptionGroupAttributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mqfast.errors import CallRefused
from mqfast.remoting.codes import ResponseCode
from mqfast.util.java_text import java_whole

__all__ = ["GROUP_ATTRIBUTES", "TOPIC_ATTRIBUTES", "changed", "parsed"]

_I64_MAX: Final = 2**63 - 1


class _Attribute(NamedTuple):
    """An attribute: its values as a set or a range, and whether an existing attribute can be changed."""

    values: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int = _I64_MAX
    changeable: bool = True


TOPIC_ATTRIBUTES: Final[Mapping[str, _Attribute]] = {
    "queue.type": _Attribute(("BatchCQ", "SimpleCQ"), changeable=False),
    "cleanup.policy": _Attribute(("DELETE", "COMPACTION"), changeable=False),
    "message.type": _Attribute(
        ("UNSPECIFIED", "MIXED", "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "LITE", "NORMAL"),
    ),
    "reserve.time": _Attribute(minimum=-1),
    "lite.topic.expiration": _Attribute(minimum=-1, maximum=30 * 24 * 60),
}
GROUP_ATTRIBUTES: Final[Mapping[str, _Attribute]] = {
    "priority.factor": _Attribute(minimum=0, maximum=100),
    "lite.bind.topic": _Attribute(),
    "lite.sub.model": _Attribute(("Shared", "Exclusive")),
    "lite.sub.reset.offset.exclusive": _Attribute(("true", "false")),
    "lite.sub.reset.offset.unsubscribe": _Attribute(("true", "false")),
    "lite.sub.client.quota": _Attribute(minimum=-1),
    "lite.sub.client.max.event.cnt": _Attribute(minimum=10),
    "lite.sub.wildcard": _Attribute(),
}


def _refused(text: str) -> CallRefused:
    return CallRefused(ResponseCode.SYSTEM_ERROR, text)


def parsed(text: str | None) -> dict[str, str]:
    """Parse ``+key=value,-key`` into a map with the signs. Raises: CallRefused."""
    changes: dict[str, str] = {}
    for word in (text or "").split(",") if text else ():
        key, sign, value = word.partition("=")
        if sign and "+" not in key:
            raise _refused(f"add/alter attribute format is wrong: {key}")
        if not sign and "-" not in key:
            raise _refused(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise _refused(f"key duplication: {key}")
        changes[key] = value
    return changes


def changed(
    known: Mapping[str, _Attribute], current: Mapping[str, str] | None, wanted: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes after a change. Args: current: None for a new topic or group. Raises: CallRefused."""
    result = dict(current or {})
    seen: set[str] = set()
    for signed, value in wanted.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _refused("kv string format wrong.")
        if key in seen:
            raise _refused(f"alter duplication key. key: {key}")
        seen.add(key)
        if current is None and sign != "+":
            raise _refused(f"only add attribute is supported while creating topic. key: {key}")
        if sign not in ("+", "-"):
            raise _refused(f"wrong format key: {key}")
        if sign == "-" and current is not None and key not in current:
            raise _refused(f"attempt to delete a nonexistent key: {key}")
        _check(known, key, value, is_new=current is None, delete=sign == "-")
        if sign == "+":
            result[key] = value
        else:
            del result[key]
    return result


def _check(known: Mapping[str, _Attribute], key: str, value: str, *, is_new: bool, delete: bool) -> None:
    attribute = known.get(key)
    if attribute is None:
        raise _refused(f"unsupported key: {key}")
    if not is_new and not attribute.changeable:
        raise _refused(f"attempt to update an unchangeable attribute. key: {key}")
    if delete:
        return
    if attribute.values and value not in attribute.values:
        raise _refused(f"value is not in set: [{', '.join(attribute.values)}]")
    if attribute.minimum is not None:
        try:
            number = java_whole(value)
        except ValueError:
            raise _refused(f'For input string: "{value}"') from None
        if not attribute.minimum <= number <= attribute.maximum:
            raise _refused(f"value is not in range({attribute.minimum}, {attribute.maximum})")

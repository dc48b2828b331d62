"""Namespaces: names of topics and groups with the namespace of a tenant on the wire, and without it for users.

Old style: ``namespace%name``; behind the prefix of a retry or dead-letter topic: ``%RETRY%namespace%group``. Version 2
leaves names as they are and adds two header fields to every request. Names of system topics and groups never change.
Source: NamespaceUtil, NamespaceRpcHook, NameServerAddressUtils, TopicValidator.
"""

from __future__ import annotations

import re
from typing import Final

from mqfast.client.values import MessageQueue

__all__ = [
    "DLQ_PREFIX",
    "RETRY_PREFIX",
    "header_fields",
    "is_system",
    "namespace_of_address",
    "plain_queue",
    "retry_topic",
    "unwrap",
    "wrap",
    "wrap_queue",
]

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
_SEPARATOR: Final = "%"
_SYSTEM_TOPICS: Final = frozenset(
    {
        "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)  # fmt: skip
_INSTANCE: Final = re.compile(r"(?:\w+://)?(MQ_INST_\w+_\w+)\.", re.ASCII)


def is_system(name: str) -> bool:
    """Return whether the topic or group belongs to RocketMQ itself."""
    return name in _SYSTEM_TOPICS or name.startswith(("rmq_sys_", "CID_RMQ_SYS_"))


def _split(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead-letter topic, or an empty text, and the rest."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def wrap(namespace: str | None, name: str) -> str:
    """Return the name of a topic or group on the wire; a name with the namespace stays."""
    if not namespace or not name or is_system(name):
        return name
    prefix, rest = _split(name)
    if rest.startswith(namespace + _SEPARATOR):
        return name
    return f"{prefix}{namespace}{_SEPARATOR}{rest}"


def unwrap(namespace: str | None, name: str) -> str:
    """Return the name for users; a name of another namespace stays as it is."""
    if not namespace or not name or is_system(name):
        return name
    prefix, rest = _split(name)
    if not rest.startswith(namespace + _SEPARATOR):
        return name
    return prefix + rest[len(namespace) + 1 :]


def retry_topic(namespace: str | None, group: str) -> str:
    """Return the retry topic of a group, on the wire."""
    return RETRY_PREFIX + wrap(namespace, group)


def wrap_queue(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """Return the queue with its topic on the wire."""
    return queue._replace(topic=wrap(namespace, queue.topic)) if namespace else queue


def plain_queue(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """Return the queue with its topic for users."""
    return queue._replace(topic=unwrap(namespace, queue.topic)) if namespace else queue


def namespace_of_address(address: str) -> str | None:
    """Return the namespace that a cloud address names (``http://MQ_INST_1_2.region...``); None: there is none."""
    match = _INSTANCE.match(address)
    return match[1] if match else None


def header_fields(namespace_v2: str | None) -> dict[str, str]:
    """Return the fields that version 2 adds to the header of every request."""
    return {"nsd": "true", "ns": namespace_v2} if namespace_v2 else {}

"""Namespaces: names of topics and groups with the namespace of a tenant, as they go over the wire, and back.

Old style: ``namespace%name``; behind the prefix of a retry or dead-letter topic: ``%RETRY%namespace%group``. Users see
names without the namespace. Version 2 leaves names as they are and adds two header fields to every request.
It must never change the name of a system topic or group. Source: NamespaceUtil, NamespaceRpcHook,
NameServerAddressUtils, TopicValidator.
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
    """Does the topic or group belong to RocketMQ itself?"""
    return name in _SYSTEM_TOPICS or name.startswith(("rmq_sys_", "CID_RMQ_SYS_"))


def _split(name: str) -> tuple[str, str]:
    """The prefix of a retry or dead-letter topic, or none, and the rest."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def wrap(namespace: str | None, name: str) -> str:
    """The name on the wire of a topic or group; a name that has the namespace already stays."""
    if not namespace or not name or is_system(name):
        return name
    prefix, rest = _split(name)
    if rest.startswith(namespace + _SEPARATOR):
        return name
    return f"{prefix}{namespace}{_SEPARATOR}{rest}"


def unwrap(namespace: str | None, name: str) -> str:
    """The name that users see; a name of another namespace stays as it is."""
    if not namespace or not name or is_system(name):
        return name
    prefix, rest = _split(name)
    if not rest.startswith(namespace + _SEPARATOR):
        return name
    return prefix + rest[len(namespace) + 1 :]


def retry_topic(namespace: str | None, group: str) -> str:
    """The retry topic of a group, on the wire."""
    return RETRY_PREFIX + wrap(namespace, group)


def wrap_queue(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """The queue with its topic as it goes over the wire."""
    return queue._replace(topic=wrap(namespace, queue.topic)) if namespace else queue


def plain_queue(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """The queue with its topic as users see it."""
    return queue._replace(topic=unwrap(namespace, queue.topic)) if namespace else queue


def namespace_of_address(address: str) -> str | None:
    """The namespace that an address of a cloud names (``http://MQ_INST_1_2.region...``); None: there is none."""
    match = _INSTANCE.match(address)
    return match[1] if match else None


def header_fields(namespace_v2: str | None) -> dict[str, str]:
    """The fields that version 2 adds to the header of every request."""
    return {"nsd": "true", "ns": namespace_v2} if namespace_v2 else {}

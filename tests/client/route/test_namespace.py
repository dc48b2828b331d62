"""Names with a namespace, old style and version 2, by RocketMQ's rules."""

from __future__ import annotations

import pytest

from mqfast.client.route.namespace import (
    header_fields,
    namespace_of_address,
    plain_queue,
    retry_topic,
    unwrap,
    wrap,
    wrap_queue,
)
from mqfast.client.values import MessageQueue

NS = "MQ_INST_1_abc"
PAIRS = [
    ("orders", f"{NS}%orders"),
    ("%RETRY%billing", f"%RETRY%{NS}%billing"),
    ("%DLQ%billing", f"%DLQ%{NS}%billing"),
    ("a%b", f"{NS}%a%b"),
]


@pytest.mark.parametrize(("plain", "wire"), PAIRS)
def test_a_name_is_wrapped_behind_its_prefix_and_comes_back(plain: str, wire: str) -> None:
    assert wrap(NS, plain) == wire
    assert unwrap(NS, wire) == plain
    assert wrap(NS, wire) == wire, "wrapped once only"
    assert wrap_queue(NS, MessageQueue(plain, "b", 1)) == MessageQueue(wire, "b", 1)
    assert plain_queue(NS, MessageQueue(wire, "b", 1)) == MessageQueue(plain, "b", 1)


@pytest.mark.parametrize("name", ["TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer", "CID_RMQ_SYS_TRANS", ""])
def test_names_of_the_system_stay(name: str) -> None:
    assert wrap(NS, name) == name
    assert unwrap(NS, name) == name


@pytest.mark.parametrize("namespace", [None, ""])
def test_without_a_namespace_nothing_changes(namespace: str | None) -> None:
    for plain, wire in PAIRS:
        assert wrap(namespace, plain) == plain
        assert unwrap(namespace, wire) == wire
    queue = MessageQueue("t", "b", 0)
    assert wrap_queue(namespace, queue) is queue
    assert plain_queue(namespace, queue) is queue


def test_a_name_of_another_namespace_stays() -> None:
    assert unwrap("MQ_INST_2_x", f"{NS}%orders") == f"{NS}%orders"
    assert wrap("MQ_INST_2_x", f"{NS}%orders") == f"MQ_INST_2_x%{NS}%orders"


def test_the_retry_topic_of_a_group_has_the_namespace_in_it() -> None:
    assert retry_topic(NS, "billing") == f"%RETRY%{NS}%billing"
    assert retry_topic(None, "billing") == "%RETRY%billing"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://MQ_INST_123_BXQ.cn-hangzhou.example.com:80", "MQ_INST_123_BXQ"),
        ("MQ_INST_123_BXQ.example.com:80", "MQ_INST_123_BXQ"),
        ("http://127.0.0.1:9876", None),
        ("127.0.0.1:9876;127.0.0.2:9876", None),
        ("http://MQ_INST_123.example.com", None),
    ],
)
def test_an_address_of_a_cloud_names_its_namespace(address: str, expected: str | None) -> None:
    assert namespace_of_address(address) == expected


def test_version_2_is_two_header_fields() -> None:
    assert header_fields("tenant") == {"nsd": "true", "ns": "tenant"}
    assert header_fields(None) == {}

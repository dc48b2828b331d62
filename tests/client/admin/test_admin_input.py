"""What administration refuses before anything is sent, and what the nonsense of a server becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from nonsense_server import Nonsense
from running import BrokerProcess

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.values import MessageQueue
from mqfast.errors import BrokerError, ClientError, ConfigError, ConnectError, NoRoute, Refused, UsageError
from mqfast.testing import Broker

NOBODY = "127.0.0.1:1"
QUEUE = MessageQueue("T", "b", 0)


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminClient]:
    with BrokerProcess(tmp_path_factory.mktemp("admin")) as cluster, AdminClient(cluster.namesrv) as one:
        yield one


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "topic of another kind": (lambda a: a.create_topic(7), "topic: expected a str, found int"),
    "no topic": (lambda a: a.create_topic(""), "topic: expected 1 to 127 characters, found 0"),
    "long topic": (lambda a: a.create_topic("t" * 128), "1 to 127 characters, found 128"),
    "characters": (lambda a: a.create_topic("a b#"), "letters, digits .* found ' #' in 'a b#'"),
    "queues": (lambda a: a.create_topic("T", queues=0), "queues: expected 1 to 1024, found 0"),
    "many queues": (lambda a: a.create_topic("T", queues=1025), "queues: expected 1 to 1024, found 1025"),
    "queues of another kind": (lambda a: a.create_topic("T", queues="8"), "queues: expected a whole number"),
    "flag for a number": (lambda a: a.create_topic("T", queues=True), "queues: expected a whole number"),
    "writes": (lambda a: a.create_topic("T", queues=4, write_queues=5), "write_queues: expected 0 to 4"),
    "perm": (lambda a: a.create_topic("T", perm="x"), "perm: expected 'rw'"),
    "kind": (lambda a: a.create_topic("T", kind="FIFOO"), "kind: .*nearest name is 'FIFO'"),
    "order": (lambda a: a.create_topic("T", order="yes"), "order: expected True or False"),
    "group": (lambda a: a.create_group("g" * 121), "group: expected 1 to 120 characters"),
    "retries": (lambda a: a.create_group("g", retry_max=-2), "retry_max: expected -1 to"),
    "setting": (lambda a: a.create_group("g", settings={"retryQueueNum": 1}), "nearest name is 'retryQueueNums'"),
    "offsets": (lambda a: a.delete_group("g", offsets=1), "offsets: expected True or False"),
    "system group": (lambda a: a.delete_group("TOOLS_CONSUMER"), "one of RocketMQ's own"),
    "to": (lambda a: a.reset_offset("g", "T", "frist"), "to: expected 'earliest', 'latest'"),
    "offset of all": (lambda a: a.reset_offset("g", "T", 5), "found 5; an offset needs queue="),
    "time of one": (lambda a: a.reset_offset("g", "T", 1_700_000_000_000, queue=QUEUE), "give a time as a datetime"),
    "negative": (lambda a: a.reset_offset("g", "T", -1, queue=QUEUE), "expected an offset of the queue, found -1"),
    "other topic": (lambda a: a.reset_offset("g", "S", 5, queue=QUEUE), "queue: expected one of topic S"),
    "dry run": (lambda a: a.reset_offset("g", "T", "last", dry_run=0), "dry_run: expected True or False"),
    "itself": (lambda a: a.clone_offset("g", "g"), "another one than the source"),
    "two": (lambda a: a.find("T", msg_id="A", key="k"), "one of msg_id and key, found both"),
    "none": (lambda a: a.find("T"), "expected msg_id, key, or a time"),
    "seconds": (lambda a: a.find("T", begin=1_700_000_000), "seconds need a factor of 1000"),
    "time of another kind": (lambda a: a.browse("T", begin="now"), "begin: expected a datetime or ms"),
    "backwards": (
        lambda a: a.browse("T", begin=datetime.now(), end=datetime.now() - timedelta(1)), "expected a time before end",
    ),
    "count": (lambda a: a.browse("T", max_count=0), "max_count: expected 1 to"),
    "tags": (lambda a: a.browse("T", tags=" || "), "tag expression"),
    "key": (lambda a: a.find("T", key="a b"), "key: expected a text without blanks"),
    "empty id": (lambda a: a.trace(""), "msg_id: expected a text"),
    "broker of another kind": (lambda a: a.runtime([]), "broker: expected a str, found list"),
    "settings of another kind": (lambda a: a.create_group("g", settings=3), "settings: expected a mapping"),
    "queue of another kind": (lambda a: a.reset_offset("g", "T", 5, queue="T"), "queue: expected a MessageQueue"),
    "half a queue": (lambda a: a.reset_offset("g", "T", 5, queue=("T", "b")), "queue: expected a MessageQueue"),
    "member of another kind": (lambda a: a.running_info("g", {}), "client_id: expected a str, found dict"),
    "no letter": (lambda a: a.resend(b"x"), "message: expected a Delivery, found bytes"),
    "no changes": (lambda a: a.set_broker_config("b", {}), "changes: expected a mapping"),
    "name": (lambda a: a.set_broker_config("b", {"a=b": "1"}), "names of settings, found 'a=b'"),
    "lines": (lambda a: a.set_broker_config("b", {"a": "1\nb=2"}), "a: expected one line"),
    "value": (lambda a: a.set_namesrv_config({"a": 1.5}), "a: expected a text, a number or a bool"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_before_anything_is_sent(name: str) -> None:
    act, text = REFUSED[name]
    with AdminClient(NOBODY) as one, pytest.raises(UsageError, match=text):
        act(one)  # a request would end with ConnectError: nobody listens there


@pytest.mark.parametrize(
    "given",
    [
        {"timeout_s": 0},
        {"timeout_s": "5"},
        {"timeout_s": True},
        {"namesrv_addr": "a:b"},
        {"credentials": ("a", "b")},
        {"tls": "yes"},
        {"timeout": 3},
    ],
)
def test_bad_arguments_of_the_client(given: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"namesrv_addr": NOBODY, **given}
    with pytest.raises(ConfigError, match=next(iter(given))):
        AdminClient(**arguments)


def test_names_that_do_not_exist_bring_the_nearest_one(admin: AdminClient) -> None:
    ((cluster, brokers),) = admin.clusters().items()
    (broker,) = brokers
    admin.create_topic("payments", queues=1)
    admin.create_group("billing")
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: admin.topic_stats("payment"), NoRoute, "nearest name is 'payments'"),
        (lambda: admin.topic_config("payment"), NoRoute, "nearest name is 'payments'"),
        (lambda: list(admin.browse("payment")), NoRoute, "nearest name is 'payments'"),
        (lambda: admin.delete_topic("payment"), NoRoute, "nearest name is 'payments'"),
        (lambda: admin.lag("biling"), ConfigError, "nearest name is 'billing'"),
        (lambda: admin.lag("billing", "payment"), NoRoute, "nearest name is 'payments'"),
        (lambda: list(admin.dead_letters("biling")), ConfigError, "nearest name is 'billing'"),
        (lambda: admin.group_config("biling"), ConfigError, "nearest name is 'billing'"),
        (lambda: admin.reset_offset("biling", "payments", "last"), ConfigError, "nearest name is 'billing'"),
        (lambda: admin.create_topic("x", cluster=cluster[:-1]), ConfigError, f"nearest name is '{cluster}'"),
        (lambda: admin.runtime(broker + "x"), ConfigError, f"expected one of {broker}"),
        (lambda: admin.create_topic("TBW102"), ConfigError, "RocketMQ's own"),
        (lambda: admin.delete_topic(broker), ConfigError, "RocketMQ's own"),
    ]
    for act, error, text in cases:
        with pytest.raises(error, match=text):
            act()
    queue = MessageQueue("payments", broker, 3)
    with pytest.raises(ConfigError, match="queue: id: expected one of 0; found '3'"):
        admin.reset_offset("billing", "payments", 0, queue=queue)
    with pytest.raises(ConfigError, match="queue: broker"):
        admin.reset_offset("billing", "payments", 0, queue=queue._replace(broker_name="vn-other"))


def test_a_refusal_names_code_remark_and_address(admin: AdminClient) -> None:
    (brokers,) = admin.clusters().values()
    ((broker, addresses),) = brokers.items()
    with pytest.raises(Refused) as refused:
        admin.set_broker_config(broker, {"brokerConfigPath": "/tmp/x"}, unchecked=True)
    assert (refused.value.code, refused.value.broker) == (16, addresses[0])
    assert "black list" in refused.value.remark
    assert addresses[0] in str(refused.value)


def test_name_servers_that_are_away_are_named() -> None:
    with AdminClient([NOBODY, "127.0.0.1:2"]) as one, pytest.raises(ConnectError, match=r"127\.0\.0\.1:[12].*:[12]"):
        one.topics()


@pytest.fixture(scope="module")
def nonsense() -> Iterator[Nonsense]:
    with Nonsense() as one:
        yield one


MQ = b'{"brokerName":"b","queueId":0,"topic":"T"}'
ODD: dict[str, tuple[int, dict[str, str], bytes, Callable[[AdminClient], Any]]] = {
    "no JSON": (202, {}, b"\xff\xfe", lambda a: a.topic_stats("T")),
    "cut JSON": (202, {}, b'{"offsetTable":{', lambda a: a.topic_stats("T")),
    "another type": (202, {}, b'{"offsetTable":[1]}', lambda a: a.topic_stats("T")),
    "a key that is none": (202, {}, b'{"offsetTable":{"q":{"maxOffset":1}}}', lambda a: a.topic_stats("T")),
    "a text for a number": (202, {}, b'{"offsetTable":{%s:{"maxOffset":"many"}}}' % MQ, lambda a: a.topic_stats("T")),
    "no clusters": (106, {}, b"[]", lambda a: a.clusters()),
    "no list": (206, {}, b'{"topicList":7}', lambda a: a.topics()),
    "lag": (208, {}, b'{"offsetTable":{%s:7}}' % MQ, lambda a: a.lag("g")),
    "no messages": (12, {}, b"\x00\x00\x00\x08junk", lambda a: a.find("T", key="k")),
    "settings": (26, {}, b"no pairs at all", lambda a: a.broker_config("b")),
    "runtime": (28, {}, b'{"table":[]}', lambda a: a.runtime("b")),
    "replication": (907, {}, b'{"haConnectionInfo":{}}', lambda a: a.ha_status("b")),
    "members": (203, {}, b'{"connectionSet":{}}', lambda a: a.connections("g")),
    "count": (205, {"wipeTopicCount": "some"}, b"", lambda a: a.wipe_write_perm("b")),
    "no count": (205, {}, b"", lambda a: a.wipe_write_perm("b")),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_nonsense_of_a_server_is_an_error_with_its_address(nonsense: Nonsense, name: str) -> None:
    code, fields, body, act = ODD[name]
    nonsense.answers = {code: (0, fields, body)}
    with AdminClient(nonsense.address) as one:
        with pytest.raises(BrokerError, match="cannot be read") as odd:
            act(one)
        assert (odd.value.code, odd.value.broker) == (0, nonsense.address)
        assert nonsense.address in str(odd.value)
        nonsense.answers = {}
        assert list(one.clusters()) == ["c"], "the client lives"


def test_an_odd_code_is_an_error_with_its_remark(nonsense: Nonsense) -> None:
    nonsense.answers = {202: (4711, {}, b"")}
    with AdminClient(nonsense.address) as one, pytest.raises(BrokerError) as odd:
        one.topic_stats("T")
    assert (odd.value.code, odd.value.remark, odd.value.broker) == (4711, "so it is", nonsense.address)
    full = (0, {}, b'{"offsetTable":{%s:{"maxOffset":9}}}' % MQ)
    nonsense.answers = {11: (0, {"nextBeginOffset": "x"}, b""), 202: full}
    with AdminClient(nonsense.address) as one, pytest.raises(ClientError, match=nonsense.address):
        list(one.browse("T"))
    nonsense.answers = {29: (0, {"offset": "x"}, b""), 202: full}
    with AdminClient(nonsense.address) as one, pytest.raises(ClientError, match=nonsense.address):
        list(one.browse("T", begin=datetime.now()))


def test_a_pull_that_goes_nowhere_ends_the_queue(nonsense: Nonsense) -> None:
    fields = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "9"}
    nonsense.answers = {11: (20, fields, b""), 202: (0, {}, b'{"offsetTable":{%s:{"maxOffset":9}}}' % MQ)}
    with AdminClient(nonsense.address) as one:
        assert list(one.browse("T")) == []


def test_a_change_where_no_broker_is_registered_yet_is_no_error_of_the_settings(
    rocketmq_broker_per_test: Broker,
) -> None:
    broker = rocketmq_broker_per_test
    admin = broker.admin()
    broker.stop()
    broker.wait_until(lambda: not admin.clusters(), timeout_s=30)
    with pytest.raises(NoRoute, match="the name servers know none"):
        admin.create_topic("orders")
    broker.restart()
    broker.wait_until(admin.clusters, timeout_s=30)
    admin.create_topic("orders")

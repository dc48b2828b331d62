"""Whole tables of a broker, values of name servers, users, single messages and offsets: against a running broker."""

from __future__ import annotations

import pytest
from admin_cluster import address_of, filled
from members import ask, send, until
from running import BrokerProcess

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.values import MessageQueue
from mqfast.errors import ConfigError, UnknownName
from mqfast.remoting.codes import RequestCode


def queue_of(admin: AdminClient, topic: str, queue_id: int = 0) -> MessageQueue:
    (broker,) = admin.topic_config(topic)
    return MessageQueue(topic, broker, queue_id)


def test_tables_of_a_broker(admin: AdminClient) -> None:
    filled(admin, "tab", 6, queues=2, UNIQ_KEY="AB" * 16)
    admin.create_group("tab-crew", broker=address_of(admin))
    admin.set_offsets("tab-crew", {queue_of(admin, "tab"): 2}, dry_run=False)
    broker = address_of(admin)
    assert admin.topic_configs(broker)["tab"]["readQueueNums"] == 2
    assert admin.group_configs(broker)["tab-crew"]["groupName"] == "tab-crew"
    progress = admin.all_progress(broker)["tab-crew"][queue_of(admin, "tab")]
    assert (progress.committed, progress.end) == (2, 6)
    rates = admin.counter(broker, "TOPIC_PUT_NUMS", "tab")
    assert rates is not None
    assert set(rates) == {"day", "hour", "minute"}
    assert admin.counter(broker, "TOPIC_PUT_NUMS", "none") is None
    for what in ("queues", "topics", "log"):
        admin.clean(broker, what)
    with pytest.raises(ConfigError, match="kind: expected one of"):
        admin.clean(broker, "dust")


def test_offsets_of_single_queues(admin: AdminClient) -> None:
    filled(admin, "tab-offsets", 5, queues=2, UNIQ_KEY="AB" * 16)
    admin.create_group("tab-mover")
    queue = queue_of(admin, "tab-offsets")
    other = queue_of(admin, "tab-offsets", 1)
    (row,) = admin.set_offsets("tab-mover", {queue: 3})
    assert (row.to, row.skipped, admin.committed("tab-mover", "tab-offsets")[queue]) == (3, 3, -1)
    admin.set_offsets("tab-mover", {queue: 3}, dry_run=False)
    assert admin.committed("tab-mover", "tab-offsets") == {queue: 3, other: -1}
    with pytest.raises(ConfigError, match="expected 0 to 5"):
        admin.set_offsets("tab-mover", {queue: 9})
    with pytest.raises(ConfigError, match="queues of one topic"):
        admin.set_offsets("tab-mover", {})


def test_single_messages(admin: AdminClient) -> None:
    filled(admin, "tab-one", 3, queues=2, UNIQ_KEY="AB" * 16)
    message = admin.message_at(queue_of(admin, "tab-one"), 1)
    assert message is not None
    assert message.body == b"1"
    assert admin.message_at(queue_of(admin, "tab-one"), 3) is None
    same = admin.find_by_place(message.offset_msg_id)
    assert same is not None
    assert same.body == b"1"
    assert admin.find_by_place("nothing") is None
    with pytest.raises(UnknownName, match="queue: broker"):
        admin.message_at(MessageQueue("tab-one", "nobody", 0), 0)


def test_one_broker_only(admin: AdminClient) -> None:
    admin.create_topic("tab-here", broker=address_of(admin))
    assert "tab-here" in admin.topics()
    with pytest.raises(UnknownName, match="broker: expected one of"):
        admin.create_topic("tab-there", broker="nobody")


def test_values_of_name_servers(admin: AdminClient) -> None:
    admin.set_namesrv_value("tab", "broker-a:2")
    assert [values["tab"] for values in admin.namesrv_values().values()] == ["broker-a:2"]
    admin.set_namesrv_value("tab", None)
    assert all("tab" not in values for values in admin.namesrv_values().values())
    assert list(admin.namesrv_values("nothing").values()) == [{}]


def test_the_life_of_a_dead_letter(cluster: BrokerProcess, admin: AdminClient) -> None:
    admin.create_topic("tab-life", queues=1)
    admin.create_group("tab-doomed")
    unique = "EF" * 16
    send(address_of(admin), "tab-life", b"x", UNIQ_KEY=unique)
    until(lambda: admin.find("tab-life", msg_id=unique), "the index")
    (message,) = admin.browse("tab-life")
    ask(
        address_of(admin), RequestCode.CONSUMER_SEND_MSG_BACK, group="tab-doomed", offset=message.physical_offset,
        delayLevel=-1, originMsgId=message.offset_msg_id, originTopic="tab-life", unitMode="false",
    )  # fmt: skip
    admin.set_offsets("tab-doomed", {message.queue: 1}, dry_run=False)
    until(lambda: admin.life(unique, "tab-life").events[-2].kind == "dead letter", "the letter")
    for life in (admin.life(unique, "tab-life"), admin.life(unique), admin.life(message.offset_msg_id)):
        assert life is not None
        assert (life.msg_id, life.topic) == (unique, "tab-life")
        assert [event.kind for event in life.events] == ["born", "put", "dead letter", "passed"]
        _, put, dead, passed = life.events
        assert put.place is not None
        assert (put.time_ms, put.place.queue_offset) == (message.store_timestamp, 0)
        assert "a unit of the queue names the record" in put.text
        assert (dead.group, passed.group, passed.time_ms) == ("tab-doomed", "tab-doomed", None)
        assert "no client wrote a trace" in life.unknown[0]
    assert admin.life("nothing") is None
    assert admin.life("AA" * 16, "tab-life") is None

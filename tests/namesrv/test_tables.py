"""The tables of a name server with a clock of the test's own: who is there, where topics are, and who is gone when."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from mqfast.namesrv.tables import Registered, RegisteredBroker, RouteTables
from mqfast.remoting.bodies import DataVersion, QueueData, TopicConfigBody, TopicTableBody, encode_body


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def table(*topics: str, counter: int = 1, state: int = 0, **config: Any) -> TopicTableBody:
    configs = {
        name: TopicConfigBody(topic_name=name, read_queue_nums=8, write_queue_nums=8, **config) for name in topics
    }
    return TopicTableBody(DataVersion(counter, state, 7), configs)


class World:
    def __init__(self, **switches: bool) -> None:
        self.clock = Clock()
        self.tables = RouteTables(self.clock, **switches)

    def add(
        self, name: str, broker_id: int = 0, topics: TopicTableBody | None = None, cluster: str = "c", **more: Any
    ) -> Registered | None:
        broker = RegisteredBroker(cluster, name, broker_id, f"{name}{broker_id}:1")
        more.setdefault("channel", f"channel of {name}{broker_id}")
        return self.tables.register(broker, topics or table("T1", "T2"), ha_address=f"{name}{broker_id}:2", **more)

    def remove(self, *brokers: tuple[str, int], cluster: str = "c") -> None:
        self.tables.unregister([RegisteredBroker(cluster, name, i, f"{name}{i}:1") for name, i in brokers])

    def route(self, topic: str, **how: Any) -> dict[str, Any] | None:
        found = self.tables.route(topic, **how)
        return None if found is None else msgspec.json.decode(encode_body(found))

    def addresses(self, topic: str = "T1") -> dict[str, dict[str, str]]:
        found = self.route(topic)
        return {} if found is None else {one["brokerName"]: one["brokerAddrs"] for one in found["brokerDatas"]}

    def perms(self, topic: str = "T1") -> dict[str, int]:
        found = self.route(topic)
        return {} if found is None else {one["brokerName"]: one["perm"] for one in found["queueDatas"]}


def test_a_route_has_the_fields_that_all_clients_know() -> None:
    world = World()
    world.add("a")
    assert world.route("T1") == {
        "brokerDatas": [
            {"brokerAddrs": {"0": "a0:1"}, "brokerName": "a", "cluster": "c", "enableActingMaster": False},
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "a", "perm": 6, "readQueueNums": 8, "topicSysFlag": 0, "writeQueueNums": 8},
        ],
    }
    assert world.route("none") is None
    found = world.tables.route("T1", bare=True, order="a:8")
    assert encode_body(found).startswith(b'{"brokerDatas":[{"brokerAddrs":{0:"a0:1"},"brokerName":"a"')
    assert b'"orderTopicConf":"a:8"' in encode_body(found)


def test_a_silent_broker_expires_after_120_seconds_and_not_before() -> None:
    world = World()
    world.add("a", channel="first")
    world.add("b", timeout_ms=1000)
    world.clock.now += 1000
    assert world.tables.expire() == []
    world.clock.now += 1
    assert world.tables.expire() == ["channel of b0"]
    assert world.addresses() == {"a": {"0": "a0:1"}}
    world.clock.now += 100_000
    world.add("a", channel="second")
    world.clock.now += 60_000
    world.tables.touch("c", "a0:1")
    world.tables.touch("c", "nobody:1")
    world.clock.now += 120_000
    assert world.tables.expire() == []
    world.clock.now += 1
    assert world.tables.expire() == ["second"]
    assert world.tables.topics() == []
    assert world.tables.clusters() == {}
    assert world.tables.groups() == {}


def test_the_close_of_an_old_connection_keeps_a_reconnected_broker() -> None:
    world = World()
    world.add("a", channel="old")
    world.add("a", channel="new")
    world.tables.channel_closed("old")
    assert world.addresses() == {"a": {"0": "a0:1"}}
    world.tables.channel_closed("new")
    assert world.addresses() == {}


def test_all_brokers_of_a_connection_go_with_it() -> None:
    world = World()
    world.add("a", channel="one")
    world.add("b", channel="one")
    world.add("b", 1, channel="two")
    world.tables.channel_closed("one")
    assert world.addresses() == {"b": {"1": "b1:1"}}


def test_a_first_registration_with_one_topic_is_refused() -> None:
    world = World()
    assert world.add("a", topics=table("T1")) is None
    assert world.addresses() == {}
    assert world.add("a") == Registered()
    assert world.add("a", topics=table("T3", counter=2)) == Registered()
    assert world.tables.topics() == ["T1", "T2", "T3"]


def test_a_topic_table_is_stored_if_its_version_changed_or_a_topic_is_new() -> None:
    world = World()
    world.add("a")
    world.add("a", topics=table("T1", "T3", perm=4))
    assert (world.perms("T1"), world.perms("T3")) == ({"a": 6}, {"a": 4})
    world.add("a", topics=table("T1", "T3", perm=4, state=1))
    assert world.perms("T1") == {"a": 4}
    assert not world.tables.is_changed("c", "a0:1", DataVersion(1, 1, 7))
    assert world.tables.is_changed("c", "a0:1", DataVersion(1, 0, 7))
    assert world.tables.is_changed("c", "other:1", DataVersion(1, 0, 7))
    assert world.tables.data_version("c", "other:1") is None


def test_registrations_that_delete_topics() -> None:
    world = World()
    world.add("a")
    world.add("b")
    world.tables.delete_topics = True
    world.add("a", topics=table("T2", "T3", counter=2))
    assert world.addresses("T1") == {"b": {"0": "b0:1"}}
    assert world.tables.topics() == ["T1", "T2", "T3"]
    world.add("b", topics=table("T2", "T3", counter=2))
    assert world.tables.topics() == ["T2", "T3"]


def test_slaves_learn_their_master_and_bring_no_topics() -> None:
    world = World()
    assert world.add("a", 1, table("T8", "T9")) == Registered()
    assert world.tables.topics() == []
    world.add("a")
    assert world.add("a", 1) == Registered("a0:2", "a0:1")
    assert world.addresses() == {"a": {"0": "a0:1", "1": "a1:1"}}
    world.remove(("a", 0))
    assert world.addresses() == {"a": {"1": "a1:1"}}
    assert world.perms() == {"a": 6}


def test_acting_masters() -> None:
    world = World(acting_master=True)
    for broker_id in (0, 1, 2):
        world.add("a", broker_id, acting_master=True)
    world.remove(("a", 0))
    assert world.perms() == {"a": 4}
    assert world.addresses() == {"a": {"0": "a1:1", "2": "a2:1"}}
    world.add("a", 1, table("T1", "T5", counter=2), acting_master=True)
    assert world.perms("T5") == {"a": 4}
    world.tables.acting_master = False
    assert world.addresses() == {"a": {"1": "a1:1", "2": "a2:1"}}
    smallest = [(one.min_broker_id, one.offline_address, one.channels) for one in world.tables.changes]
    assert smallest == [(1, "a0:1", ("channel of a1", "channel of a2"))]
    world.add("a", 0, acting_master=True)
    assert world.tables.changes[-1].min_broker_id == 0
    assert world.tables.changes[-1].channels == ("channel of a1", "channel of a2")
    assert world.tables.changes[-1].ha_address == "a0:2"


def test_a_broker_changes_its_role() -> None:
    world = World()
    world.add("a")
    world.tables.register(RegisteredBroker("c", "a", 1, "a0:1"), table("T1", "T2"), ha_address="", channel="x")
    assert world.addresses() == {"a": {"1": "a0:1"}}


def test_a_broker_with_an_older_state_version_does_not_replace_a_newer() -> None:
    world = World()
    world.add("a", topics=table("T1", "T2", state=5))
    other = RegisteredBroker("c", "a", 0, "other:1")
    assert world.tables.register(other, table("T1", "T2", state=4), ha_address="", channel="x") == Registered()
    assert world.addresses() == {"a": {"0": "a0:1"}}
    world.tables.register(other, table("T1", "T2", state=5), ha_address="", channel="x")
    assert world.addresses() == {"a": {"0": "other:1"}}


def test_many_leave_at_once() -> None:
    world = World()
    for name in "abc":
        world.add(name)
    world.add("x", cluster="d")
    world.remove(("a", 0), ("b", 0), ("nobody", 0))
    assert world.addresses() == {"c": {"0": "c0:1"}, "x": {"0": "x0:1"}}
    assert world.tables.clusters() == {"c": ["c"], "d": ["x"]}
    assert world.tables.topics_of_cluster("d") == ["T1", "T2"]
    assert world.tables.topics_of_cluster("none") == []


def test_write_permission_comes_and_goes() -> None:
    world = World()
    world.add("a")
    world.add("b", topics=table("T1", "T9"))
    assert world.tables.set_write_permission("a", False) == 2
    assert world.perms() == {"a": 4, "b": 6}
    assert world.tables.set_write_permission("a", True) == 2
    assert world.perms() == {"a": 6, "b": 6}
    assert world.tables.set_write_permission("nobody", False) == 0
    world.tables.set_write_permission("a", False)
    world.add("a", topics=table("T1", "T2", counter=2))
    assert world.perms() == {"a": 6, "b": 6}


def test_topics_of_admins() -> None:
    world = World()
    world.add("a")
    assert world.tables.add_topic("given", [QueueData("a", 6, 2, 0, 2)])
    assert world.addresses("given") == {"a": {"0": "a0:1"}}
    assert not world.tables.add_topic("other", [QueueData("a"), QueueData("nobody")])
    assert world.route("other") is None
    assert not world.tables.add_topic("given", [QueueData("nobody")])
    world.add("x", cluster="d")
    world.tables.delete_topic("T1", "d")
    assert world.addresses("T1") == {"a": {"0": "a0:1"}}
    world.tables.delete_topic("T1", "c")
    world.tables.delete_topic("T2", None)
    world.tables.delete_topic("none", "c")
    assert world.tables.topics() == ["given"]
    assert world.tables.system_topics() == (["c", "a", "d", "x"], "a0:1")


def test_units() -> None:
    world = World()
    for counter, flag in enumerate((0, 1, 2, 3)):
        world.add("a", topics=table(f"F{flag}", f"G{flag}", counter=counter, topic_sys_flag=flag))
    assert world.tables.unit_topics() == ["F1", "G1", "F3", "G3"]
    assert world.tables.unit_sub_topics() == ["F2", "G2", "F3", "G3"]
    assert world.tables.unit_sub_topics(without_unit=True) == ["F2", "G2"]


def test_zones_and_filter_servers_and_static_topics() -> None:
    world = World()
    mapped = table("T1", "T2")
    mapped.topic_queue_mapping_info_map["T1"] = msgspec.Raw(b'{"bname":"a"}')
    world.add("a", zone_name="Z1", filter_servers=["f:1"], topics=mapped)
    world.add("b", zone_name="z2")
    found = world.route("T1", zone="z1")
    assert found is not None
    assert [one["brokerName"] for one in found["brokerDatas"]] == ["a"]
    assert [one["brokerName"] for one in found["queueDatas"]] == ["a"]
    assert found["brokerDatas"][0]["zoneName"] == "Z1"
    assert found["filterServerTable"] == {"a0:1": ["f:1"]}
    assert found["topicQueueMappingByBroker"] == {"a": {"bname": "a"}}
    world.add("a", filter_servers=[])
    assert world.route("T1", zone="z2")["filterServerTable"] == {}  # type: ignore[index]


def test_a_shared_announced_address_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.add("a")
    with caplog.at_level(logging.WARNING, "mqfast.namesrv"):
        world.tables.register(RegisteredBroker("c", "b", 0, "a0:1"), table("T1", "T2"), ha_address="", channel="x")
    assert "brokers a and b announce one address, a0:1" in caplog.text


def test_members() -> None:
    world = World()
    world.add("a")
    world.add("a", 3)
    assert world.tables.member_group("c", "a") == {0: "a0:1", 3: "a3:1"}
    assert world.tables.member_group("other", "a") == {}
    assert world.tables.member_group("c", "nobody") == {}

"""Administration of a cluster with two brokers: a change reaches both, an answer is that of both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from members import ask, send, until

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.values import MessageQueue
from mqfast.errors import ConfigError
from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[Broker]:
    with Broker(brokers=2) as one:
        yield one


@pytest.fixture(scope="module")
def admin(cluster: Broker) -> Iterator[AdminClient]:
    with AdminClient(cluster.namesrv_addr) as one:
        yield one


@pytest.fixture(scope="module")
def addresses(admin: AdminClient) -> dict[str, str]:
    (brokers,) = admin.clusters().values()
    assert len(brokers) == 2
    return {name: ids[0] for name, ids in brokers.items()}


def test_a_topic_is_made_on_every_master_and_deleted_from_each(
    admin: AdminClient, cluster: Broker, addresses: dict[str, str]
) -> None:
    admin.create_topic("both", queues=2, order=True)
    assert sorted(admin.topic_config("both")) == sorted(addresses)
    assert list(admin.topic_stats("both")) == [
        MessageQueue("both", name, n) for name in sorted(addresses) for n in (0, 1)
    ]
    kept = ask(
        cluster.namesrv_addr.split(";")[0], RequestCode.GET_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="both"
    )
    assert sorted(kept.ext_fields["value"].split(";")) == sorted(f"{name}:2" for name in addresses)
    admin.delete_topic("both")
    for address in addresses.values():
        assert ask(address, RequestCode.GET_TOPIC_CONFIG, topic="both").code == 17


def test_messages_offsets_and_groups_of_both(admin: AdminClient, addresses: dict[str, str]) -> None:
    admin.create_topic("shared", queues=1)
    for turn in range(6):
        for name, address in addresses.items():
            send(address, "shared", f"{turn} {name}".encode(), KEYS="k")
    until(lambda: sum(one.max_offset for one in admin.topic_stats("shared").values()) == 12, "the messages")
    found = list(admin.browse("shared"))
    assert len(found) == 12
    assert [one.store_timestamp for one in found] == sorted(one.store_timestamp for one in found)
    assert {one.queue.broker_name for one in found} == set(addresses)
    assert len(list(admin.browse("shared", max_count=7))) == 7
    until(lambda: len(admin.find("shared", key="k")) == 12, "the index")
    for message in found[:4]:
        (same,) = admin.find("shared", msg_id=message.offset_msg_id)
        assert (same.body, same.queue) == (message.body, message.queue)
    admin.create_group("pair")
    assert all(settings["groupName"] == "pair" for settings in admin.group_config("pair").values())
    assert sorted(admin.group_config("pair")) == sorted(addresses)
    admin.reset_offset("pair", "shared", "last", dry_run=False)
    assert [(queue.broker_name, one.committed, one.behind) for queue, one in admin.lag("pair").items()] == [
        (name, 6, 0) for name in sorted(addresses)
    ]
    first = sorted(addresses)[0]
    (row,) = admin.reset_offset("pair", "shared", 2, queue=MessageQueue("shared", first, 0), dry_run=False)
    assert (row.now, row.to, row.replayed) == (6, 2, 4)
    assert [one.behind for one in admin.lag("pair").values()] == [4, 0]
    admin.create_group("ahead")
    beyond = {"consumerGroup": "ahead", "topic": "shared", "queueId": "0", "commitOffset": "106"}
    assert ask(addresses[first], RequestCode.UPDATE_CONSUMER_OFFSET, **beyond).code == 0
    assert [(one.behind, one.beyond) for one in admin.lag("ahead").values()] == [(0, 100)]
    with pytest.raises(ConfigError, match="queue: broker: expected one of"):
        admin.reset_offset("pair", "shared", 2, queue=MessageQueue("shared", "nobody", 0))
    admin.delete_group("pair", offsets=True)
    assert "pair" not in admin.groups()


def test_one_broker_is_drained_and_the_other_stays(admin: AdminClient, addresses: dict[str, str]) -> None:
    first, second = sorted(addresses)
    admin.create_topic("drained", queues=1)
    assert admin.wipe_write_perm(first) > 0
    assert writable(admin, "drained") == {second}
    admin.add_write_perm(first)
    assert writable(admin, "drained") == {first, second}


def writable(admin: AdminClient, topic: str) -> set[str]:
    """The brokers that a producer may write to, as the name servers say."""
    route = admin._run(admin._instance.route(topic, refresh=True))
    return {queue.broker_name for queue in route.publish_queues()}

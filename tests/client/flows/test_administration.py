"""Administration of clusters of every release and of ours: the same calls, the same results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from members import Member, ask, member, send, until

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.admin.async_admin_client import AsyncAdminClient
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientError, ConfigError, NoRoute
from mqfast.properties import DLQ_ATTEMPTS
from mqfast.remoting.codes import RequestCode

LONG_S = 30.0  # a Java broker may tell its name server of a new topic as late as this


@pytest.fixture(scope="module")
def admin(cluster_address: str) -> Iterator[AdminClient]:
    with AdminClient(cluster_address, timeout_s=LONG_S) as one:
        yield one


@pytest.fixture(scope="module")
def broker(admin: AdminClient) -> str:
    """The name of the cluster's one broker."""
    (brokers,) = admin.clusters().values()
    (name,) = brokers
    return name


@pytest.fixture(scope="module")
def address(admin: AdminClient, broker: str) -> str:
    (brokers,) = admin.clusters().values()
    return brokers[broker][0]


def knows_itself(admin: AdminClient, broker: str) -> bool:
    """Does the broker move offsets itself, or only by its members (4.x)?"""
    return admin.broker_config(broker).get("useServerSideResetOffset") == "true"


def stored(admin: AdminClient, topic: str, count: int) -> None:
    """Wait until so many messages of a topic can be read: dispatch runs behind the acknowledgement."""
    until(
        lambda: sum(one.max_offset - one.min_offset for one in admin.topic_stats(topic).values()) >= count,
        f"{count} messages of {topic}",
    )


def test_a_topic_from_its_creation_to_its_deletion(admin: AdminClient, broker: str, address: str) -> None:
    admin.create_topic("adm-life", queues=3, order=False)
    assert "adm-life" in admin.topics()
    (settings,) = admin.topic_config("adm-life").values()
    assert (settings["readQueueNums"], settings["writeQueueNums"], settings["perm"]) == (3, 3, 6)
    assert list(admin.topic_stats("adm-life")) == [MessageQueue("adm-life", broker, n) for n in range(3)]
    send(address, "adm-life", b"1", b"2", queue_id=2)
    stored(admin, "adm-life", 2)
    (*_, (low, high, last)) = admin.topic_stats("adm-life").values()
    assert (low, high) == (0, 2)
    assert abs(datetime.now(UTC) - datetime.fromtimestamp(last / 1000, UTC)) < timedelta(hours=1)
    with pytest.raises(ConfigError, match="at least 3, found 2: 2 messages of queues 2 to 2"):
        admin.create_topic("adm-life", queues=2)
    admin.create_topic("adm-life", queues=5, perm="r")
    (settings,) = admin.topic_config("adm-life").values()
    assert (settings["readQueueNums"], settings["perm"]) == (5, 4)
    admin.create_topic("adm-life", queues=2, allow_shrink=True)
    admin.delete_topic("adm-life")
    until(lambda: "adm-life" not in admin.topics(), "the deletion")
    with pytest.raises(NoRoute, match="adm-life"):
        admin.delete_topic("adm-life")


def test_system_topics_are_shown_when_asked_for(admin: AdminClient) -> None:
    assert "SELF_TEST_TOPIC" in admin.topics(system=True)
    assert not {"SELF_TEST_TOPIC", "TBW102", *admin.clusters()} & set(admin.topics())
    (cluster,) = admin.clusters()
    assert "TBW102" in admin.topics(cluster=cluster, system=True)


def test_an_ordered_topic_is_written_into_the_name_servers(
    admin: AdminClient, broker: str, cluster_address: str
) -> None:
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "adm-order"}
    admin.create_topic("adm-order", queues=2, order=True)
    answer = ask(cluster_address, RequestCode.GET_KV_CONFIG, **fields)
    assert answer.ext_fields["value"] == f"{broker}:2"
    admin.delete_topic("adm-order")
    assert ask(cluster_address, RequestCode.GET_KV_CONFIG, **fields).code == 22


def test_a_group_from_its_creation_to_its_deletion(admin: AdminClient, request: pytest.FixtureRequest) -> None:
    admin.create_group("adm-crew", retry_max=3, orderly=True)
    assert "adm-crew" in admin.groups()
    (settings,) = admin.group_config("adm-crew").values()
    assert (settings["retryMaxTimes"], settings.get("consumeMessageOrderly", True)) == (3, True), "4.x has no orderly"
    admin.create_group("adm-crew", settings={"consumeBroadcastEnable": False, "retryQueueNums": 2})
    admin.create_group("adm-crew", retry_max=4)
    (settings,) = admin.group_config("adm-crew").values()
    assert (settings["retryMaxTimes"], settings.get("consumeMessageOrderly", False)) == (4, False)
    assert (settings["consumeBroadcastEnable"], settings["retryQueueNums"]) == (False, 2), "what is not named stays"
    assert admin.connections("adm-crew") == []
    with pytest.raises(ConfigError, match="nearest name is 'adm-crew'"):
        admin.connections("adm-cerw")
    if "[5.5.0" in request.node.name:
        with pytest.raises(ClientError, match="autoCreateSubscriptionGroup"):  # Java's makes it again at once
            admin.delete_group("adm-crew")
    admin.delete_group("adm-crew", offsets=True)
    assert "adm-crew" not in admin.groups()
    with pytest.raises(ConfigError, match="adm-crew"):
        admin.delete_group("adm-crew")


@pytest.fixture(scope="module")
def pile(admin: AdminClient, address: str) -> list[str]:
    """Topic adm-pile: 40 messages in queue 0 and 10 in queue 1. Returns: the offset ids of the ten."""
    admin.create_topic("adm-pile", queues=2)
    send(address, "adm-pile", *(b"%d" % n for n in range(40)), TAGS="even", KEYS="all first")
    ids = send(address, "adm-pile", *(b"s%d" % n for n in range(10)), queue_id=1, TAGS="odd", KEYS="all")
    stored(admin, "adm-pile", 50)
    return ids


@pytest.mark.usefixtures("pile")
def test_a_group_without_members_goes_where_it_is_told(admin: AdminClient, broker: str) -> None:
    first, second = (MessageQueue("adm-pile", broker, n) for n in range(2))
    admin.create_group("adm-away")
    plan = admin.reset_offset("adm-away", "adm-pile", "last")
    assert [(one.queue, one.to, one.skipped, one.replayed) for one in plan] == [(first, 40, 40, 0), (second, 10, 10, 0)]
    assert admin.reset_offset("adm-away", "adm-pile", "last") == plan, "a plan changes nothing"
    assert admin.reset_offset("adm-away", "adm-pile", "last", dry_run=False) == plan
    assert [tuple(one)[:2] for one in admin.lag("adm-away", "adm-pile").values()] == [(40, 0), (10, 0)]
    back = admin.reset_offset("adm-away", "adm-pile", 7, queue=first, dry_run=False)
    assert [tuple(one) for one in back] == [(first, 40, 7, 0, 33)]
    lag = admin.lag("adm-away")
    assert tuple(lag[first])[:2] == (7, 33)
    assert tuple(lag[second])[:2] == (10, 0)
    assert timedelta(0) < lag[first].age < timedelta(hours=1)
    assert lag[second].age == timedelta(0)
    hour_ago = datetime.now() - timedelta(hours=1)
    assert [one.to for one in admin.reset_offset("adm-away", "adm-pile", hour_ago)] == [0, 0]
    times = [one.store_timestamp for one in admin.browse("adm-pile")]
    to = [one.to for one in admin.reset_offset("adm-away", "adm-pile", times[-1] + 60_000)]
    assert to[0] in (39, 40), "4.x answers with the last message for a time behind it"
    admin.reset_offset("adm-away", "adm-pile", "first", dry_run=False)
    assert [tuple(one)[:2] for one in admin.lag("adm-away").values()] == [(0, 40), (0, 10)]
    with pytest.raises(ConfigError, match="expected 0 to 10"):
        admin.reset_offset("adm-away", "adm-pile", 11, queue=second)


@pytest.mark.usefixtures("pile")
def test_one_group_goes_on_where_another_is(admin: AdminClient, broker: str) -> None:
    first = MessageQueue("adm-pile", broker, 0)
    for group in ("adm-from", "adm-to"):
        admin.create_group(group)
    admin.reset_offset("adm-from", "adm-pile", "last", dry_run=False)
    admin.reset_offset("adm-from", "adm-pile", 12, queue=first, dry_run=False)
    admin.reset_offset("adm-to", "adm-pile", "first", dry_run=False)
    plan = admin.clone_offset("adm-from", "adm-to")
    assert [(one.now, one.to, one.skipped) for one in plan] == [(0, 12, 12), (0, 10, 10)]
    assert [one.committed for one in admin.lag("adm-to").values()] == [0, 0]
    assert admin.clone_offset("adm-from", "adm-to", "adm-pile", dry_run=False) == plan
    assert [one.committed for one in admin.lag("adm-to").values()] == [12, 10]


def _a_group_that_is_away(admin: AdminClient) -> None:
    """A group that has read, and has no member."""
    admin.create_group("adm-away")
    admin.reset_offset("adm-away", "adm-pile", "first", dry_run=False)


@pytest.mark.usefixtures("pile")
def test_a_running_group_is_reset(admin: AdminClient, cluster_address: str, broker: str) -> None:
    _a_group_that_is_away(admin)
    admin.create_group("adm-here")
    admin.reset_offset("adm-here", "adm-pile", "last", dry_run=False)
    by_itself = knows_itself(admin, broker)
    first = MessageQueue("adm-pile", broker, 0)

    async def told(one: Member) -> None:
        while not [code for code, _, _ in one.asked if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET]:
            await asyncio.sleep(0.02)

    async def flow() -> None:
        async with (
            asyncio.timeout(300),
            member(cluster_address, "adm-here", "adm-pile") as one,
            AsyncAdminClient(cluster_address, timeout_s=LONG_S) as asking,
        ):
            await asking.reset_offset("adm-here", "adm-pile", "first", dry_run=False)
            if not by_itself:
                await told(one)
                assert all(b":0" in body for _, _, body in one.asked)
            lag = await asking.lag("adm-here")
            assert [row.committed for row in lag.values() if row.behind] == [0, 0]
            if by_itself:
                await asking.reset_offset("adm-here", "adm-pile", 5, queue=first, dry_run=False)
                assert (await asking.lag("adm-here"))[first].committed == 5
            else:
                with pytest.raises(ConfigError, match="without members"):
                    await asking.reset_offset("adm-here", "adm-pile", 5, queue=first, dry_run=False)
            with pytest.raises(ConfigError, match="without members"):
                await asking.clone_offset("adm-away", "adm-here", dry_run=False)

    asyncio.run(flow())


@pytest.mark.usefixtures("pile")
def test_a_member_tells_of_itself_and_consumes_one_message(admin: AdminClient, cluster_address: str) -> None:
    _a_group_that_is_away(admin)
    admin.create_group("adm-member")

    async def flow() -> None:
        async with (
            asyncio.timeout(300),
            member(cluster_address, "adm-member", "adm-pile") as one,
            AsyncAdminClient(cluster_address, timeout_s=LONG_S) as asking,
        ):
            (row,) = await asking.connections("adm-member")
            assert (row["client_id"], row["language"]) == (one.client_id, "PYTHON")
            assert (row["model"], row["consume_type"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
            assert row["subscriptions"]["adm-pile"] == "*"
            assert "adm-away" in await asking.topic_groups("adm-pile")
            info = await asking.running_info("adm-member", one.client_id, stack=True)
            assert info["queues"] == {MessageQueue("adm-pile", "broker-x", 0): {"commitOffset": 7, "droped": False}}
            assert (info["subscriptions"], info["stack"]) == ({"adm-pile": "*"}, "one thread")
            assert info["status"]["adm-pile"]["consumeOKTPS"] == 1.5
            (message,) = [found async for found in asking.browse("adm-pile", max_count=1)]
            result = await asking.consume_directly(message, "adm-member", one.client_id)
            assert (result["result"], result["spent_ms"]) == ("CR_LATER", 5), "Go and this member send the number"
            assert one.asked[-1][2] == message.record_bytes()
            with pytest.raises(ConfigError, match="nearest name is"):
                await asking.running_info("adm-member", one.client_id[:-1] + "?")

    asyncio.run(flow())
    with pytest.raises(ConfigError, match="none is connected"):
        admin.running_info("adm-member", "anybody")


def test_messages_by_id_key_and_time(admin: AdminClient, pile: list[str], address: str) -> None:
    unique = "7F0000010001" + "0" * 19 + "A"
    (offset_id,) = send(address, "adm-pile", b"unique", queue_id=1, UNIQ_KEY=unique, KEYS="lonely")
    stored(admin, "adm-pile", 51)
    until(lambda: admin.find("adm-pile", key="lonely"), "the index")
    for name in ({"msg_id": unique}, {"msg_id": offset_id}, {"key": "lonely"}):
        (found,) = admin.find("adm-pile", **name)
        assert (found.body, found.msg_id, found.offset_msg_id) == (b"unique", unique, offset_id)
    assert [one.body for one in admin.find("adm-pile", msg_id=pile[3])] == [b"s3"]
    assert len(admin.find("adm-pile", key="first")) == 40
    assert len(admin.find("adm-pile", key="all", max_count=7)) == 7
    at = found.store_timestamp
    assert b"unique" in [one.body for one in admin.find("adm-pile", begin=at, end=at)]
    assert admin.find("adm-pile", key="lonely", end=at - 1) == []
    assert admin.find("adm-pile", key="nobody") == []
    assert admin.find("adm-pile", msg_id="7F000001" * 4) == []
    assert admin.find("adm-pile", msg_id="not-an-id") == []


def test_all_queues_are_read_in_the_order_of_time(admin: AdminClient, pile: list[str]) -> None:
    found = list(admin.browse("adm-pile", max_count=None))
    bodies = [one.body for one in found if one.body != b"unique"]
    assert sorted(bodies) == sorted([*(b"%d" % n for n in range(40)), *(b"s%d" % n for n in range(10))])
    times = [one.store_timestamp for one in found]
    assert times == sorted(times)
    assert {one.body for one in admin.browse("adm-pile", tags="odd")} == {b"s%d" % n for n in range(10)}
    assert len(list(admin.browse("adm-pile", max_count=33))) == 33
    for begin, end in ((times[0], times[-1]), (times[10], times[30]), (times[20], times[20]), (times[39], times[45])):
        expected = [one.offset_msg_id for one in found if begin <= one.store_timestamp <= end]
        assert [one.offset_msg_id for one in admin.browse("adm-pile", begin=begin, end=end)] == expected
    assert list(admin.browse("adm-pile", begin=times[-1] + 60_000)) == []
    assert list(admin.browse("adm-pile", end=times[0] - 60_000)) == []


def test_dead_letters_are_read_and_sent_back(admin: AdminClient, address: str, pile: list[str]) -> None:
    admin.create_group("adm-grave")
    assert list(admin.dead_letters("adm-grave")) == []
    admin.create_topic("adm-home", queues=1)
    send(address, "adm-home", b"body", TAGS="t", KEYS="k1 k2", UNIQ_KEY="AB" * 16, color="red")
    stored(admin, "adm-home", 1)
    (message,) = admin.browse("adm-home")
    answer = ask(
        address, RequestCode.CONSUMER_SEND_MSG_BACK, group="adm-grave", offset=message.physical_offset, delayLevel=-1,
        originMsgId=message.offset_msg_id, originTopic="adm-home", unitMode="false", maxReconsumeTimes=16,
    )  # fmt: skip
    assert answer.code == 0, answer.remark
    until(lambda: "%DLQ%adm-grave" in admin.topics(), "the topic of dead letters", 60)
    until(lambda: list(admin.dead_letters("adm-grave")), "the dead letter")
    (letter,) = admin.dead_letters("adm-grave")
    assert (letter.body, letter.topic) == (b"body", "%DLQ%adm-grave")
    result = admin.resend(letter)
    assert (result.ok, result.msg_id, result.message_queue.topic) == (True, "AB" * 16, "adm-home")
    stored(admin, "adm-home", 2)
    back = list(admin.browse("adm-home"))[1]
    assert (back.body, back.tags, list(back.keys), back.msg_id) == (b"body", "t", ["k1", "k2"], "AB" * 16)
    assert (back.properties["color"], back.properties[DLQ_ATTEMPTS], back.reconsume_times) == ("red", "1", 0)
    assert "RETRY_TOPIC" not in back.properties
    assert len(list(admin.dead_letters("adm-grave"))) == 1, "the stored letter stays"
    other = admin.resend(letter, topic="adm-pile")
    assert other.message_queue.topic == "adm-pile"
    with pytest.raises(NoRoute, match="adm-home"):
        admin.resend(letter, topic="adm-hoem")
    admin.delete_group("adm-grave", topics=True, offsets=True)
    until(lambda: "%DLQ%adm-grave" not in admin.topics(), "the deletion of dead letters")


def test_a_trace_tells_the_way_of_a_message(admin: AdminClient, address: str) -> None:
    admin.create_topic("adm-traces", queues=1)
    pub = "Pub|1700000000000|DefaultRegion|makers|T|ID1|t|k|127.0.0.1:1|12|3|0|OFF1|true"
    before = "SubBefore|1700000000005|DefaultRegion|billing|REQ|ID1|0|k"
    after = "SubAfter|REQ|ID1|9|true|k|0|"
    body = "\x02".join([pub, before, after, ""]).replace("|", "\x01")
    send(address, "adm-traces", body.encode(), KEYS="ID1 k")
    stored(admin, "adm-traces", 1)
    until(lambda: admin.trace("ID1", trace_topic="adm-traces"), "the index")
    rows: Any = admin.trace("ID1", trace_topic="adm-traces")
    assert [(one["type"], one.get("group"), one["timestamp"]) for one in rows] == [
        ("Pub", "makers", 1700000000000), ("SubBefore", "billing", 1700000000005), ("SubAfter", None, 1700000000005),
    ]  # fmt: skip
    assert (rows[0]["cost_ms"], rows[0]["message_kind"], rows[0]["success"]) == (3, "NORMAL", True)
    assert rows[2]["consumed"] == "SUCCESS"
    assert rows[0]["client_host"].startswith("127.0.0.1:")


def test_settings_of_brokers_and_name_servers(admin: AdminClient, broker: str, address: str) -> None:
    before = admin.broker_config(broker)
    assert admin.broker_config(address) == before
    changed = str(int(before["transactionCheckMax"]) - 1)
    admin.set_broker_config(broker, {"transactionCheckMax": changed})
    assert admin.broker_config(broker)["transactionCheckMax"] == changed
    admin.set_broker_config(broker, {"transactionCheckMax": before["transactionCheckMax"]})
    with pytest.raises(ConfigError, match="nearest name is 'maxMessageSize'"):
        admin.set_broker_config(broker, {"maxMesageSize": "1"})
    with pytest.raises(ConfigError, match="maxMessageSize: expected a number"):
        admin.set_broker_config(broker, {"maxMessageSize": "much"})
    runtime = admin.runtime(broker)
    assert runtime["brokerVersionDesc"].startswith("V")
    assert {"putTps", "bootTimestamp", "commitLogMaxOffset"} <= runtime.keys()
    ((_, settings),) = admin.namesrv_config().items()
    admin.set_namesrv_config({"orderMessageEnable": settings["orderMessageEnable"]})
    with pytest.raises(ConfigError, match="nearest name is 'orderMessageEnable'"):
        admin.set_namesrv_config({"orderMesageEnable": "true"})


def test_producers_are_told_not_to_write_to_a_broker(admin: AdminClient, broker: str) -> None:
    admin.create_topic("adm-wiped", queues=1)
    assert admin.wipe_write_perm(broker) > 0
    assert admin.add_write_perm(broker) > 0
    admin.create_topic("adm-wiped", queues=1)


def test_a_running_consumer_goes_back_and_tells_of_itself(
    admin: AdminClient, cluster_address: str, address: str
) -> None:
    admin.create_topic("adm-run", queues=2)
    admin.create_group("adm-runners")
    send(address, "adm-run", *(b"%d" % n for n in range(6)))
    stored(admin, "adm-run", 6)
    got: list[bytes] = []
    consumer = PushConsumer("adm-runners", cluster_address, from_where="first")
    consumer.subscribe("adm-run", lambda message: got.append(message.body))
    with consumer:
        until(lambda: set(got) == {b"%d" % n for n in range(6)}, "the messages", 60)
        (member_,) = admin.connections("adm-runners")
        info = admin.running_info("adm-runners", member_["client_id"])
        assert info["subscriptions"]["adm-run"] == "*"
        assert {queue.topic for queue in info["queues"]} >= {"adm-run"}
        (message,) = [one for one in admin.browse("adm-run") if one.body == b"4"]
        before = got.count(b"4")
        assert admin.consume_directly(message, "adm-runners", member_["client_id"])["result"] == "CR_SUCCESS"
        assert got.count(b"4") == before + 1
        until(lambda: admin.lag("adm-runners", "adm-run") and not behind(admin), "the offsets at the broker", 60)
        del got[:]
        plan = admin.reset_offset("adm-runners", "adm-run", "first", dry_run=False)
        assert sum(one.replayed for one in plan) == 6
        until(lambda: set(got) == {b"%d" % n for n in range(6)}, "the messages once more", 90)
    admin.delete_group("adm-runners", offsets=True)


def behind(admin: AdminClient) -> int:
    return sum(one.behind for one in admin.lag("adm-runners", "adm-run").values())

"""What clients make up: properties, keys, groups and client ids of others reach nothing past the rights."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from event_loop import run

sys.path.append(str(Path(__file__).resolve().parent))

from accounts import ACCOUNTS, Kind, Signing, guarded_broker
from running import Running, running_broker
from waiting import until_async as until

from mqfast import properties as names
from mqfast.broker.context import BrokerContext
from mqfast.broker.transaction.transactional_messages import Transactions
from mqfast.message import decode_message_id
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import FrameDecoder, RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.signature import sign
from mqfast.schedule.delay_levels import BROKER_TOPICS

KINDS = pytest.mark.parametrize("kind", ["1.0", "2.0"])
OF_THE_BROKER = sorted(BROKER_TOPICS | {"rmq_sys_REVIVE_LOG_DefaultCluster", "rmq_sys_anything"})
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
REPLIES = "DefaultCluster_REPLY_TOPIC"


def place(answer: RemotingCommand) -> int:
    return decode_message_id(answer.ext_fields["msgId"]).physical_offset


def transactions(one: Signing) -> Transactions:
    return one.running.parts.transactions


@contextlib.asynccontextmanager
async def client(one: Signing, who: str, name: str, producers: str) -> AsyncIterator[list[RemotingCommand]]:
    """A client of an account in a producer group. Yields: what the broker asks it."""
    asked: list[RemotingCommand] = []
    processors = Processors()

    def note(_: object, request: RemotingCommand) -> RemotingCommand:
        asked.append(request)
        return request.response(body=b"{}")

    processors.register_default(note, ConcurrencyLimit("all"))
    remoting = RemotingClient(processors)
    beat = {
        "clientID": name,
        "producerDataSet": [{"groupName": producers}],
        "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": []}] if who == "owner" else [],
    }
    body = json.dumps(beat).encode()
    answer = await remoting.call(one.running.address, 34, sign({}, body, *ACCOUNTS[who]), body)
    assert answer.code == 0, answer.remark
    yield asked
    await remoting.close()


async def half_message(one: Signing, who: str, topic: str, key: str = "K", **more: Any) -> dict[str, Any]:
    """Returns: the fields of 37 that end it."""
    properties = names.encode({"TRAN_MSG": True, "PGROUP": "pg", "UNIQ_KEY": key, **more}).decode()
    sent = await one.send(who, topic, b"body", properties, g=one.context.now_ms())
    assert sent.code == 0, sent.remark
    return {
        "producerGroup": "pg", "commitLogOffset": place(sent), "tranStateTableOffset": sent.ext_fields["queueOffset"],
        "commitOrRollback": 12, "topic": topic,
    }  # fmt: skip


# --- topics of the broker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", OF_THE_BROKER)
def test_no_client_sends_to_a_topic_of_the_broker(tmp_path: Path, topic: str) -> None:
    """Without access control as well: the records there say what the broker is to do."""

    async def flow(one: Running) -> None:
        context = one.context
        before = context.store.max_physical_offset
        long = {
            "producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 1, "queueId": 0,
            "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "UNIQ_KEY\x01U\x02", "reconsumeTimes": 0,
        }  # fmt: skip
        letters = {
            "a": "p",
            "b": topic,
            "c": "TBW102",
            "d": 1,
            "e": 0,
            "f": 0,
            "g": 1,
            "h": 0,
            "i": "UNIQ_KEY\x01U\x02",
            "j": 0,
        }
        for code, fields in ((10, long), (310, letters), (320, letters), (324, long), (325, letters)):
            answer = await one.call(code, b"forged", **fields)
            assert (answer.code, answer.remark) == (16, f"Sending message to topic[{topic}] is forbidden."), code
        for pairs in ({}, {"DELAY": 1}, {"TRAN_MSG": True}):
            lights = names.encode({"UNIQ_KEY": "U", "INNER_MULTI_DISPATCH": f"%LMQ%a,{topic}", **pairs}).decode()
            assert (await one.send("T", b"forged", properties=lights)).code == 16
        assert context.store.max_physical_offset == before

    async def main() -> None:
        async with running_broker(tmp_path, enableLmq=True, enableMultiDispatch=True) as one:
            await flow(one)

    run(main())


def put(context: BrokerContext, topic: str, queue_id: int, pairs: dict[str, Any]) -> None:
    context.topics.ensure(topic, queue_id + 1)
    context.engine.put_encoded(
        topic.encode(), queue_id, b"forged", names.encode(pairs), 0, 0, 1, None, context.store_host, 0, wait=False
    )


@pytest.mark.parametrize("target", sorted(BROKER_TOPICS))
def test_nothing_is_delivered_to_a_topic_of_the_broker(tmp_path: Path, target: str) -> None:
    """As where an older version took such a record from a client."""

    async def main() -> None:
        async with running_broker(tmp_path) as one:
            context = one.context
            due = {"REAL_QID": 7, "TIMER_OUT_MS": context.now_ms() - 1000, "TIMER_ENQUEUE_MS": 1}
            for topic in (target, "T"):  # the second one shows that the first has had its turn
                put(context, "SCHEDULE_TOPIC_XXXX", 0, {"REAL_TOPIC": topic, "DELAY": 1, **due})
                put(context, "rmq_sys_wheel_timer", 0, {"REAL_TOPIC": topic, **due})
            timer = one.parts.timers.service
            assert timer is not None
            timer.wake()
            await one.send("T", b"later", properties="TIMER_DELAY_MS\x011000\x02")  # wakes the timer
            await until(lambda: context.store.max_offset("T", 7) == 2)
            assert context.store.max_offset(target, 7) == 0

    run(main())


# --- fields -----------------------------------------------------------------------------------------------------------


def frame(code: int, fields: str, body: bytes = b"") -> bytes:
    """A request whose fields are this JSON, as no client writes them."""
    head = f'{{"code":{code},"flag":0,"language":"JAVA","opaque":7,"version":477,"extFields":{fields}}}'.encode()
    return struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body


async def raw(one: Signing, sent: bytes) -> RemotingCommand:
    reader, writer = await asyncio.open_connection(*one.running.broker.address)
    writer.write(sent)
    decoder, found = FrameDecoder(), []
    while not found:
        found = decoder.feed(await reader.read(65536))
    writer.close()
    return found[0]


LETTERS = {
    "a": "p", "b": "own", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": "UNIQ_KEY\x01U\x02",
    "j": "0",
}  # fmt: skip
PULL = {
    "consumerGroup": "g", "topic": "own", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip


@KINDS
@pytest.mark.parametrize("code", [310, 320, 325, 10, 324, 11, 361, 33, 15])
@pytest.mark.parametrize("how", ["null", "escaped", "twice"])
def test_a_repeated_field_has_the_same_value_for_acl_filter_and_handler(
    tmp_path: Path, kind: Kind, code: int, how: str
) -> None:
    long = {
        "producerGroup": "p", "topic": "own", "defaultTopic": "TBW102", "defaultTopicQueueNums": "1", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "UNIQ_KEY\x01U\x02", "reconsumeTimes": "0",
    }  # fmt: skip

    async def main() -> None:
        async with guarded_broker(tmp_path, kind) as one:
            sent = await one.send("owner", "secret_topic", b"secret body", "UNIQ_KEY\x01U\x02")
            (await one.send("owner", "own"))
            offset = {"topic": "own", "consumerGroup": "g", "queueId": "0", "commitOffset": "5"}
            fields = {11: PULL, 361: PULL, 10: long, 324: long, 33: {"offset": "7"}, 15: offset}.get(code, LETTERS)
            name = "b" if fields is LETTERS else "offset" if code == 33 else "topic"
            secret = str(place(sent)) if code == 33 else "secret_topic"
            before = one.context.store.max_offset("secret_topic", 0)
            for first in (False, True):
                signed = sign(fields, b"", *ACCOUNTS["other"])
                if how == "null":  # as the signature is made: with the value, or without
                    variants = [signed, sign({k: v for k, v in fields.items() if k != name}, b"", *ACCOUNTS["other"])]
                else:
                    variants = [signed, sign({**fields, name: secret}, b"", *ACCOUNTS["other"])]
                for variant in variants:
                    pairs = [f"{json.dumps(k)}:{json.dumps(v)}" for k, v in variant.items() if k != name]
                    own = {
                        "null": f'"{name}":null',
                        "escaped": f'"\\u{ord(name[0]):04x}{name[1:]}":{json.dumps(fields[name])}',
                        "twice": f'"{name}":{json.dumps(fields[name])}',
                    }[how]
                    other = f'"{name}":{json.dumps(secret)}'
                    pairs += [own, other] if first else [other, own]
                    answer = await raw(one, frame(code, "{" + ",".join(pairs) + "}"))
                    assert (answer.code, answer.remark) == (16, f"field {name}: expected once, found twice")
                    assert not answer.body
            assert one.context.store.max_offset("secret_topic", 0) == before
            assert one.context.offsets.get("g", "secret_topic", 0) == -1

    run(main())


# --- retries of POP ---------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("separator", ["_", "+"])
def test_retries_of_pop_belong_to_the_group_that_popped(tmp_path: Path, kind: Kind, separator: str) -> None:
    """The name of their topic is that of a group of its own as well: ``%RETRY%a_b`` is the retry topic of a_b."""

    async def main() -> None:
        async with guarded_broker(tmp_path, kind, enableRetryTopicV2=separator == "+") as one:
            context = one.context
            topic = f"%RETRY%secret_group{separator}secret_topic"
            sent = await one.send("owner", "secret_topic", b"secret body", "UNIQ_KEY\x01U\x02KEYS\x01K\x02")
            assert sent.code == 0, sent.remark
            for group in ("secret_group", "own", f"secret_group{separator}secret_topic"):
                await one.call("owner", 200, json.dumps({"groupName": group}).encode())
            pop = {
                "consumerGroup": "secret_group", "topic": "secret_topic", "queueId": 0, "maxMsgNums": 1,
                "invisibleTime": 1000, "pollTime": 0, "bornTime": 0, "initMode": 0,
            }  # fmt: skip
            assert (await one.call("owner", 200050, **pop)).code == 0
            await until(lambda: context.store.max_offset(topic, 0) == 1)
            (again,) = context.store.get(topic, 0, 0)
            offset = again.physical_offset
            query = {"topic": topic, "key": "K", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 2**62}
            asks: list[tuple[int, dict[str, Any]]] = [
                (11, {**PULL, "topic": topic}),
                (33, {"offset": offset, "topic": "own"}),
                (12, query),
                (200052, {**pop, "consumerGroup": "own", "topic": topic}),
                (200050, {**pop, "consumerGroup": "own", "topic": topic}),
                (36, {"group": "own", "offset": offset, "delayLevel": 0, "unitMode": "false"}),
                (30, {"topic": topic, "queueId": 0}),
                (15, {"topic": topic, "consumerGroup": "own", "queueId": 0, "commitOffset": 1}),
                (310, {**LETTERS, "b": topic}),
            ]
            before = context.store.max_physical_offset
            for code, fields in asks:
                answer = await one.call("other", code, **fields)
                assert answer.code in (1, 16), (code, answer.remark)
                assert b"secret body" not in bytes(answer.body)
            assert context.store.max_physical_offset == before
            owned = await one.call("owner", 11, **{**PULL, "topic": topic, "consumerGroup": "secret_group"})
            assert b"secret body" in bytes(owned.body)

    run(main())


@KINDS
def test_a_group_whose_name_is_like_a_retry_topic_reads_its_own(tmp_path: Path, kind: Kind) -> None:
    """A group ``secret_group`` that has popped nothing of a topic ``b`` owns no retries of ``secret_group_b``."""

    async def main() -> None:
        async with guarded_broker(tmp_path, kind) as one:
            context = one.context
            for group in ("secret_group", "secret_group_b"):
                await one.call("owner", 200, json.dumps({"groupName": group}).encode())
            sent = await one.send("owner", "b")
            assert sent.code == 0, sent.remark
            back = {"group": "secret_group_b", "offset": place(sent), "delayLevel": 1, "unitMode": "false"}
            assert (await one.call("other", 36, **back)).code == 0
            await until(lambda: context.store.max_offset("%RETRY%secret_group_b", 0) == 1)
            fields = {**PULL, "topic": "%RETRY%secret_group_b", "consumerGroup": "secret_group_b"}
            pulled = await one.call("other", 11, **fields)
            assert pulled.code == 0, pulled.remark
            await one.call(
                "other", 15, topic="%RETRY%secret_group_b", consumerGroup="secret_group_b", queueId=0, commitOffset=1
            )
            assert (await one.call("other", 11, **fields)).code == 0

    run(main())


@KINDS
def test_only_the_shared_retry_topic_is_closed_to_a_group_whose_name_is_like_that_of_pop(
    tmp_path: Path, kind: Kind
) -> None:
    """Another group may pop a topic at any time: the group ``secret_group_b`` goes on with all else."""

    async def main() -> None:
        async with guarded_broker(tmp_path, kind) as one:
            for group in ("secret_group", "secret_group_b"):
                await one.call("owner", 200, json.dumps({"groupName": group}).encode())
            assert (await one.send("owner", "b")).code == 0
            pop = {
                "consumerGroup": "secret_group", "topic": "b", "queueId": 0, "maxMsgNums": 1,
                "invisibleTime": 1000, "pollTime": 0, "bornTime": 0, "initMode": 0,
            }  # fmt: skip
            assert (await one.call("owner", 200050, **pop)).code == 0
            await until(lambda: one.context.store.max_offset("%RETRY%secret_group_b", 0) == 1)
            topics = [{"topic": name, "subString": "*"} for name in ("own", "%RETRY%secret_group_b")]
            consumer = {"groupName": "secret_group_b", "subscriptionDataSet": topics}
            beat = await one.call("other", 34, json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode())
            assert beat.code == 0, beat.remark
            own = await one.call("other", 11, **{**PULL, "topic": "own", "consumerGroup": "secret_group_b"})
            assert own.code not in (1, 16), own.remark
            shared = {**PULL, "topic": "%RETRY%secret_group_b", "consumerGroup": "secret_group_b"}
            assert (await one.call("other", 11, **shared)).code in (1, 16)

    run(main())


# --- light queues -----------------------------------------------------------------------------------------------------


@KINDS
def test_a_light_queue_needs_pub_on_its_own_name(tmp_path: Path, kind: Kind) -> None:
    async def main() -> None:
        async with guarded_broker(tmp_path, kind, enableLmq=True, enableMultiDispatch=True) as one:
            for pairs in ("secret_topic", "%LMQ%a,secret_topic", "%LMQ%a\x02INNER_MULTI_DISPATCH\x01secret_topic"):
                refused = await one.send(
                    "other", "t", properties=f"UNIQ_KEY\x01U\x02INNER_MULTI_DISPATCH\x01{pairs}\x02"
                )
                assert refused.code in (1, 16)
            assert one.context.store.max_offset("secret_topic", 0) == 0
            sent = await one.send("other", "t", properties="UNIQ_KEY\x01U\x02INNER_MULTI_DISPATCH\x01%LMQ%a\x02")
            assert sent.code == 0, sent.remark
            await until(lambda: one.context.store.max_offset("%LMQ%a", 0) == 1)

    run(main())


# --- transactions -----------------------------------------------------------------------------------------------------


@KINDS
def test_a_transaction_with_the_key_of_another_does_not_end_it(tmp_path: Path, kind: Kind) -> None:
    """A check stores a half message once more, and its key leads to the newest one: for its own topic."""

    async def main() -> None:
        async with guarded_broker(tmp_path, kind, transactionTimeOut=1) as one:
            open_one = await half_message(one, "owner", "secret_topic")
            await asyncio.sleep(0.01)  # older than transactionTimeOut
            await transactions(one).check.round()
            assert one.context.store.max_offset(HALF, 0) == 2
            forged = await half_message(one, "other", "t")
            for _ in range(2):  # the second one: the half message has ended, and only its key is left
                await one.call("other", 37, **forged)
            await transactions(one).check.round()
            ended = await one.call("owner", 37, **{**open_one, "commitOrRollback": 8})
            assert (ended.code, ended.remark) == (0, None)
            await until(lambda: one.context.store.max_offset("secret_topic", 0) == 1)

    run(main())


@KINDS
@pytest.mark.parametrize("how", ["delayed", "checked"])
def test_a_forged_message_ends_no_transaction_at_the_next_start(tmp_path: Path, kind: Kind, how: str) -> None:
    async def first() -> dict[str, Any]:
        async with guarded_broker(tmp_path, kind, transactionTimeOut=1) as one:
            open_one = await half_message(one, "owner", "secret_topic")
            await asyncio.sleep(0.01)
            await transactions(one).check.round()
            if how == "delayed":  # 8: the bits of a committed transaction
                sent = await one.send(
                    "other", "t", b"x", "UNIQ_KEY\x01K\x02DELAY\x0118\x02", f=8, g=one.context.now_ms()
                )
                assert sent.code == 0, sent.remark
            else:
                await half_message(one, "other", "t", TRANSACTION_CHECK_TIMES=1)
            return open_one

    async def second(open_one: dict[str, Any]) -> None:
        settings: dict[str, Any] = {"aclEnable": True, "aclFile": str(tmp_path / "plain_acl.yml")}
        if kind == "2.0":
            settings = {"authorizationEnabled": True}
        async with running_broker(tmp_path / "store", **settings) as running:
            ended = await Signing(running).call("owner", 37, **{**open_one, "commitOrRollback": 8})
            assert (ended.code, ended.remark) == (0, None)

    async def main() -> None:
        await second(await first())

    run(main())


@KINDS
def test_a_transaction_check_needs_the_pub_right_of_the_producer(tmp_path: Path, kind: Kind) -> None:
    async def main() -> None:
        async with guarded_broker(tmp_path, kind, transactionTimeOut=1) as one:
            async with client(one, "nobody", "n", "pg") as stranger, client(one, "other", "o", "pg") as other:
                await half_message(one, "owner", "secret_topic")
                await asyncio.sleep(0.01)
                for _ in range(3):
                    assert await transactions(one).check.round() == 0
                async with client(one, "owner", "w", "pg") as owner:
                    while await transactions(one).check.round() == 0:  # a check that found no producer waits a moment
                        await asyncio.sleep(0.01)
                    await until(lambda: any(request.code == 39 for request in owner))
                    assert stranger == other == []

    run(main())


@KINDS
def test_the_answer_to_a_check_ends_the_transaction(tmp_path: Path, kind: Kind) -> None:
    async def main() -> None:
        settings = {"transactionTimeOut": 1}
        async with guarded_broker(tmp_path, kind, **settings) as one, client(one, "other", "o", "pg") as asked:
            await half_message(one, "other", "t")
            await asyncio.sleep(0.01)
            assert await transactions(one).check.round() == 1
            await until(lambda: bool(asked))
            fields = {name: asked[0].ext_fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "topic")}
            assert fields["topic"] == HALF
            answer = {**fields, "producerGroup": "pg", "commitOrRollback": 8, "fromTransactionCheck": "true"}
            assert (await one.call("other", 37, **answer)).code == 0
            await until(lambda: one.context.store.max_offset("t", 0) == 1)

    run(main())


# --- recalls ----------------------------------------------------------------------------------------------------------


@KINDS
def test_a_timer_delete_of_another_topic_removes_no_message(tmp_path: Path, kind: Kind) -> None:
    async def main() -> None:
        async with guarded_broker(tmp_path, kind, recallMessageEnable=True) as one:
            due = (one.context.now_ms() // 1000 + 3) * 1000
            kept = await one.send("owner", "secret_topic", b"kept", f"UNIQ_KEY\x01K\x02TIMER_DELIVER_MS\x01{due}\x02")
            for number, key in enumerate(("K", "secret_topic+K")):
                forged = f"UNIQ_KEY\x01F{number}\x02TIMER_DELIVER_MS\x01{due}\x02TIMER_DEL_UNIQKEY\x01{key}\x02"
                assert (await one.send("other", "t", b"0", forged)).code == 0
            handle = kept.ext_fields["recallHandle"]
            for topic in ("t", "secret_topic"):
                assert (await one.call("other", 370, topic=topic, recallHandle=handle, producerGroup="p")).code != 0
            await until(lambda: one.context.store.max_offset("secret_topic", 0) == 1)

    run(main())


# --- rights that are taken away ---------------------------------------------------------------------------------------


async def take_away(one: Signing, kind: Kind) -> None:
    """``other`` may not read t any more."""
    if kind == "1.0":
        fields = {"topicPerms": "t=DENY,secret_topic=DENY", "accessKey": "other-key", "secretKey": "other-password"}
        assert (await one.call("owner", 50, **fields)).code == 0
    else:
        entry = {"resource": "Topic:t", "actions": ["All"], "decision": "Deny"}
        body = json.dumps({"policies": [{"entries": [entry]}]}).encode()
        assert (await one.call("owner", 3006, body, subject="User:other-key")).code == 0


@KINDS
def test_a_held_pull_gets_nothing_after_the_right_was_removed(tmp_path: Path, kind: Kind) -> None:
    async def main() -> None:
        async with guarded_broker(tmp_path, kind) as one:
            fields = {
                "consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32, "sysFlag": 2 | 4,
                "commitOffset": 0, "suspendTimeoutMillis": 50_000, "subscription": "*", "subVersion": 0,
            }  # fmt: skip
            assert (await one.send("owner", "t")).code == 0
            for body in (b"one", b"two"):
                waiting = asyncio.ensure_future(one.call("other", 11, **fields))
                await until(lambda: len(one.running.parts.long_polling) == 1)
                if body == b"two":
                    await take_away(one, kind)
                assert (await one.send("owner", "t", body)).code == 0
                answer = await waiting
                assert (answer.code == 0) == (body == b"one"), answer.remark
                assert b"two" not in bytes(answer.body)
                fields["queueOffset"] = 2

    run(main())


# --- clients ----------------------------------------------------------------------------------------------------------


@KINDS
def test_a_reply_goes_to_the_account_that_asked(tmp_path: Path, kind: Kind) -> None:
    async def main() -> None:
        async with guarded_broker(tmp_path, kind) as one:
            letters = {"a": "p", "b": REPLIES, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "j": 0}
            async with client(one, "owner", "asker", "pg") as owner, client(one, "other", "asker", "pg") as thief:
                answer = await one.call("owner", 325, b"for the asker", **letters, i="REPLY_TO_CLIENT\x01asker\x02")
                assert (answer.code, answer.remark) == (0, None)
                assert [request.code for request in owner if request.code != 40] == [326]
                assert thief == []
            refused = await one.call("nobody", 325, b"x", **letters, i="REPLY_TO_CLIENT\x01asker\x02")
            assert refused.code in (1, 16)

    run(main())


@KINDS
def test_a_forwarded_request_has_no_signature(tmp_path: Path, kind: Kind) -> None:
    """A signature is good for every code: the client could send it back with another one."""

    async def main() -> None:
        async with guarded_broker(tmp_path, kind) as one, client(one, "owner", "c", "pg") as asked:
            answer = await one.call("owner", 307, consumerGroup="g", clientId="c", jstackEnable="false")
            assert answer.code == 0, answer.remark
            (told,) = [request.ext_fields for request in asked if request.code == 307]
            assert told == {"consumerGroup": "g", "clientId": "c", "jstackEnable": "false"}

    run(main())


def test_a_name_without_a_signature_has_no_rights(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded_broker(tmp_path, "2.0", authenticationWhitelist="310,33") as one:
            letters = {
                "a": "p",
                "b": "secret_topic",
                "c": "TBW102",
                "d": 1,
                "e": 0,
                "f": 0,
                "g": 1,
                "h": 0,
                "i": "",
                "j": 0,
            }
            forged = await one.running.call(310, b"x", **letters, AccessKey=ACCOUNTS["owner"][0])
            assert forged.code == 16
            sent = await one.send("owner", "secret_topic")
            assert sent.code == 0, sent.remark
            assert (await one.running.call(33, offset=place(sent), AccessKey=ACCOUNTS["owner"][0])).code == 16

    run(main())


@pytest.mark.parametrize("hidden", ["RMQ_SYS_TRACE_TOPIC;secret_topic", "secret_topic;RMQ_SYS_TRACE_TOPIC"])
def test_the_trace_topic_excuses_itself_alone(tmp_path: Path, hidden: str) -> None:
    async def main() -> None:
        async with guarded_broker(tmp_path, "1.0") as one:
            assert (await one.send("nobody", "RMQ_SYS_TRACE_TOPIC")).code == 0
            refused = await one.call("nobody", 990_002, topic=hidden, key="K", batch=0, rows=1, tasks=1)
            assert str(refused.remark).endswith("No default permission for topic:secret_topic")

    run(main())

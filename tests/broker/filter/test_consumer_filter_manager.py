"""SQL92 filters of groups: heartbeats, pulls, 46, and config/consumerFilter.json over restarts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Running, running_broker

sys.path.append(str(Path(__file__).resolve().parents[1] / "pull"))

from pulling import SUBSCRIPTION, bodies, heartbeat, offsets, pull, run, subscription
from waiting import until_async as until

from mqfast.broker.filter import consumer_filter_manager as consumer_filters
from mqfast.broker.filter.bloom_filter import BloomFilter, murmur3
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import ResponseCode
from mqfast.store.meta.tables import ConfigTables

NO_SQL = "The broker does not support consumer to filter message by SQL92"


async def fill(one: Running) -> None:
    for i in range(6):
        assert (
            await one.send("T", b"m%d" % i, properties=f"n\x01{i}\x02color\x01{'red' if i % 3 else 'blue'}")
        ).code == 0


def by_sql(text: str, version: int = 100) -> dict[str, Any]:
    return subscription(text, version=version, kind="SQL92")


def test_a_pull_with_its_own_expression(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            await fill(one)

            async def found(text: str) -> list[bytes]:
                return bodies(await pull(one, subscription=text, expressionType="SQL92"))

            assert await found("n > 3") == [b"m4", b"m5"]
            assert await found("color = 'blue' OR n IN ('1')") == [b"m0", b"m1", b"m3"]
            none = await pull(one, subscription="n > 'x'x", expressionType="SQL92")
            assert (none.code, none.remark) == (
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed",
            )  # fmt: skip
            none = await pull(one, subscription="n > 99", expressionType="SQL92")
            assert (none.code, offsets(none)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, (6, 0, 6))
            for text, kind in (
                ("", "SQL92"),
                ("n > 3", "GROOVY"),
                ("(" * 30_000, "SQL92"),
                ("NOT " * 8000 + "n", "SQL92"),
            ):
                answer = await pull(one, subscription=text, expressionType=kind)
                assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    run(flow())


def test_without_property_filters_sql_is_refused(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one)
            answer = await pull(one, subscription="n > 3", expressionType="SQL92")
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, NO_SQL)
            await heartbeat(one, by_sql("n > 3"))
            answer = await pull(one, sysFlag=0)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, NO_SQL)

    run(flow())


def test_the_expression_of_the_heartbeat(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            await fill(one)
            plain = {"sysFlag": 0, "subscription": None, "expressionType": "SQL92"}
            await heartbeat(one, by_sql("n > 3"))
            assert bodies(await pull(one, **plain, subVersion=100)) == [b"m4", b"m5"]
            await heartbeat(one, by_sql("n > 4", version=99))  # older: it is not taken
            assert bodies(await pull(one, **plain)) == [b"m4", b"m5"]
            await heartbeat(one, by_sql("n > 4", version=101))
            assert bodies(await pull(one, **plain, subVersion=101)) == [b"m5"]
            await heartbeat(one, by_sql("n >", version=102))  # one that is refused ends the old one
            answer = await pull(one, **plain)
            assert (answer.code, answer.remark) == (
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
            await heartbeat(one, by_sql("n < 1", version=103))
            assert bodies(await pull(one, **plain)) == [b"m0"]
            one.context.filters.get("T", "g").client_version = 50  # type: ignore[union-attr]
            answer = await pull(one, **plain, subVersion=103)
            assert (answer.code, answer.remark) == (
                ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest",
            )  # fmt: skip

    run(flow())


def test_a_returning_group_with_a_slower_clock_gets_its_expression(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            await fill(one)
            plain = {"sysFlag": 0, "subscription": None, "expressionType": "SQL92"}
            await heartbeat(one, by_sql("n > 3", version=200))
            assert bodies(await pull(one, **plain, subVersion=200)) == [b"m4", b"m5"]
            await one.client.call(one.address, 35, {"clientID": "client-1", "consumerGroup": "g"})
            await heartbeat(one, by_sql("n < 2", version=100))
            assert bodies(await pull(one, **plain, subVersion=100)) == [b"m0", b"m1"]

    run(flow())


async def check(one: Running, text: str, kind: str | None = "SQL92") -> tuple[int, str | None]:
    body = {
        "clientId": "c", "group": "g", "namespace": "",
        "subscriptionData": {"topic": "T", "subString": text, "expressionType": kind, "subVersion": 1},
    }  # fmt: skip
    answer = await one.call(46, json.dumps(body).encode())
    return answer.code, answer.remark


def test_check_client_config_validates_an_expression(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            assert await check(one, "*", "TAG") == (0, None)
            assert await check(one, "*", None) == (0, None)
            assert await check(one, "n > 3") == (ResponseCode.SYSTEM_ERROR, NO_SQL)
            one.context.config.update({"enablePropertyFilter": "true"}, "test")
            assert await check(one, "n > 3") == (0, None)
            code, remark = await check(one, "n > AND")
            assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "n > AND" in str(remark)
            assert (await check(one, "n > 3", "GROOVY"))[0] == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert (await one.call(46)).code == 0

    run(flow())


def test_filters_are_kept_over_a_restart_and_forgotten_a_day_later(tmp_path: Path) -> None:
    now = [1_700_000_000_000]

    async def first() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True, now_ms=lambda: now[0]) as one:
            await fill(one)
            client = RemotingClient()
            await heartbeat(one, by_sql("n > 3"), client=client)
            await heartbeat(one, by_sql("n > 4"), group="gone", client=client)
            await client.close()
            await until(lambda: not one.context.consumers.groups(), "the end of the groups")
            assert one.context.filters.get("T", "gone").is_dead  # type: ignore[union-attr]

    async def second() -> None:
        now[0] += 3_600_000
        async with running_broker(tmp_path, enablePropertyFilter=True, now_ms=lambda: now[0]) as one:
            # A new heartbeat of the same version: the filter lives again.
            await heartbeat(one, by_sql("n > 3"))
            assert bodies(await pull(one, sysFlag=0, subVersion=100)) == [b"m4", b"m5"]
            assert one.context.filters.get("T", "gone") is not None
            now[0] += 24 * 3_600_000
            one.context.filters.forget_late()
            assert one.context.filters.get("T", "gone") is None
            assert not one.context.filters.get("T", "g").is_dead  # type: ignore[union-attr]
            # Another subscription takes the place of the filter.
            await heartbeat(one, subscription("*", topic="U", version=200))
            assert one.context.filters.get("T", "g").is_dead  # type: ignore[union-attr]

    run(first())
    raw = ConfigTables.load(tmp_path).filters.get("T")
    assert raw is not None
    assert raw["topic"] == "T"
    assert raw["groupFilterData"]["g"] == {
        "bloomFilterData": {"bitNum": 112, "bitPos": raw["groupFilterData"]["g"]["bloomFilterData"]["bitPos"]},
        "bornTime": 1_700_000_000_000, "clientVersion": 100, "consumerGroup": "g", "dead": True,
        "deadTime": 1_700_000_000_000, "expression": "n > 3", "expressionType": "SQL92", "topic": "T",
    }  # fmt: skip
    assert len(raw["groupFilterData"]["g"]["bloomFilterData"]["bitPos"]) == 3
    run(second())
    raw = ConfigTables.load(tmp_path).filters.get("T")
    assert raw is not None
    assert list(raw["groupFilterData"]) == ["g"]


def test_an_invalid_entry_of_the_filter_file_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    good = {"topic": "T", "consumerGroup": "g", "expression": "n > 3", "expressionType": "SQL92", "bornTime": 5}
    table = {"T": {"groupFilterData": {"g": good, "bad": 7, "worse": {**good, "expression": "n >"}}}, "U": {}}
    (tmp_path / "config" / "consumerFilter.json").write_text(json.dumps({"filterDataByTopic": table}))

    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            filters = one.context.filters
            assert filters.get("T", "g") is not None
            assert filters.get("T", "bad") is None
            assert filters.get("T", "worse") is None

    run(flow())


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 0), ("hello", 0xCBD8A7B341BD9B02), ("The quick brown fox jumps over the lazy dog", 0xE34BBC7BBC071B6C)],
)
def test_the_hash_of_the_bloom_filter(text: str, number: int) -> None:
    assert murmur3(text.encode()) == number
    assert BloomFilter(20, 32).data_of(text)["bitNum"] == 112


def test_a_long_expression_sees_fewer_messages_at_once(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            for i in range(200):
                await one.send("T", b"%d" % i, properties=f"n\x01{i}\x02")
            long = " OR ".join(f"n = {number}" for number in range(150, 650))
            steps, found, at = [], 0, 0
            while at < 200:
                answer = await pull(one, subscription=long, expressionType="SQL92", queueOffset=at)
                found += len(bodies(answer))
                steps.append(offsets(answer)[0] - at)
                at = offsets(answer)[0]
            assert found == 50
            assert max(steps) < 60  # a short one goes through all 200
            short = await pull(one, subscription="n = 500", expressionType="SQL92")
            assert offsets(short)[0] == 200

    run(flow())


def test_the_room_for_filters_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_filters, "CHARS_MAX", 20)

    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            await fill(one)
            await heartbeat(one, by_sql("n > 3"))
            await heartbeat(one, by_sql("n > 1 AND n < 3333"), group="h")
            answer = await pull(one, sysFlag=0, consumerGroup="h")
            assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
            assert bodies(await pull(one, sysFlag=0)) == [b"m4", b"m5"]

    run(flow())


def test_many_filters_in_one_queue_each_get_their_messages(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            for i in range(300):
                await one.send("T", b"%d" % i, properties=f"n\x01{i}\x02")
            for number in (7, 150, 299):
                found: list[bytes] = []
                at = 0
                while at < 300:
                    answer = await pull(
                        one, sysFlag=SUBSCRIPTION, subscription=f"n = {number}", expressionType="SQL92", queueOffset=at
                    )
                    found += bodies(answer)
                    at = offsets(answer)[0]
                assert found == [b"%d" % number]

    run(flow())

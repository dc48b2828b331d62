"""Every option: what it takes, what it refuses and how it says so. Nothing here starts Spark."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from mqfast.errors import ConfigError
from mqfast.spark.options import BATCH, SINK, STREAM, Bound, Options, describe, option_name, parse

# name, where, text, value
GOOD: list[tuple[str, str, str, Any]] = [
    ("path", BATCH, "/data/store", "/data/store"),
    ("view", BATCH, "Queues", "queues"),
    ("columns", BATCH, "topic, body", ("topic", "body")),
    ("includeBody", STREAM, "FALSE", False),
    ("paths", BATCH, "a, b", (("a", "a"), ("b", "b"))),
    ("storePathCommitLog", STREAM, "/x,/y", ("/x", "/y")),
    ("decompress", STREAM, "false", False),
    ("excludeTopics", STREAM, "secret,internal*", ("secret", "internal*")),
    ("maxBodyBytes", STREAM, "64m", 64 << 20),
    ("includeSystemTopics", STREAM, "true", True),
    ("properties", BATCH, "raw", "raw"),
    ("subscribe", STREAM, "A,B", ("A", "B")),
    ("assign", BATCH, '{"B": [1, 0], "A": [2]}', (("A", 2), ("B", 0), ("B", 1))),
    ("assign", BATCH, "A/2, %RETRY%g/0", (("%RETRY%g", 0), ("A", 2))),
    ("subscribePattern", BATCH, "A.*", re.compile("A.*")),
    ("startingOffsets", STREAM, "Earliest", Bound(word="earliest")),
    ("startingOffsets", BATCH, "-1000", Bound(back_count=1000)),
    ("startingOffsets", BATCH, "-10m", Bound(back_ms=600_000)),
    ("endingOffsets", BATCH, '{"A/0": -1, "B": {"1": 7}, "*": -2}',
     Bound(by_queue={("A", 0): "latest", ("B", 1): 7}, others="earliest")),
    ("startingFrom", STREAM, "archive:orders", "archive:orders"),
    ("startingTimestamp", BATCH, "1700000000000", 1_700_000_000_000),
    ("endingTimestamp", BATCH, "2023-11-14T22:13:20", 1_700_000_000_000),
    ("startingTimestamp", STREAM, "2023-11-15T06:13:20.5+08:00", 1_700_000_000_500),
    ("startingOffsetsByTimestamp", BATCH, '{"A/0": 5, "A": {"1": "2023-11-14T22:13:20Z"}}',
     {("A", 0): 5, ("A", 1): 1_700_000_000_000}),
    ("endingOffsetsByTimestamp", BATCH, '{"A/0": 5}', {("A", 0): 5}),
    ("startingOffsetsByTimestampStrategy", BATCH, "error", "error"),
    ("group", BATCH, "readers", "readers"),
    ("tagFilter", BATCH, "A || B", "A || B"),
    ("pushdown", BATCH, "true", True),
    ("order", STREAM, "commitlog", "commitlog"),
    ("partitionBytes", BATCH, "64m", 64 << 20),
    ("minPartitions", BATCH, "8", 8),
    ("maxPartitions", STREAM, "64", 64),
    ("batchBytes", BATCH, "4MiB", 4 << 20),
    ("verifyCrc", BATCH, "mark", "mark"),
    ("failOnDataLoss", STREAM, "false", False),
    ("leaseTtl", BATCH, "0s", 0),
    ("maxOffsetsPerTrigger", STREAM, "1000", 1000),
    ("maxBytesPerTrigger", STREAM, "1g", 1 << 30),
    ("minOffsetsPerTrigger", STREAM, "10", 10),
    ("maxTriggerDelay", STREAM, "5m", 300_000),
    ("stateDir", STREAM, "/state", "/state"),
    ("commitGroup", STREAM, "outside", "outside"),
    ("topic", SINK, "T", "T"),
    ("queueSelector", SINK, "round_robin", "round_robin"),
    ("preserveTimestamps", SINK, "true", True),
    ("preserveIds", SINK, "true", True),
    ("ignoreExtraColumns", SINK, "true", True),
    ("txnId", SINK, "job-7", "job-7"),
    ("staging", SINK, "/staging", "/staging"),
    ("stagingTtl", SINK, "1d", 86_400_000),
    ("delivery", SINK, "at_least_once", "at_least_once"),
    ("namesrv", BATCH, "a:9876;b:9876", "a:9876;b:9876"),
    ("brokers", STREAM, "broker-a,broker-b", ("broker-a", "broker-b")),
    ("namespace", BATCH, "tenant", "tenant"),
    ("namespaceV2", BATCH, "tenant", "tenant"),
    ("accessKey", BATCH, "me", "me"),
    ("secretKey", BATCH, "hidden", "hidden"),
    ("securityToken", BATCH, "brief", "brief"),
    ("tls", BATCH, "true", True),
    ("tlsCa", BATCH, "/ca.pem", "/ca.pem"),
    ("tlsCert", BATCH, "/c.pem", "/c.pem"),
    ("tlsKey", BATCH, "/k.pem", "/k.pem"),
    ("tlsVerify", BATCH, "false", False),
    ("brokerTimeout", SINK, "2m", 120_000),
    ("brokerAway", STREAM, "wait", "wait"),
    ("pullGroup", BATCH, "spark", "spark"),
    ("pullBytes", BATCH, "1m", 1 << 20),
    ("sqlFilter", BATCH, "a > 1", "a > 1"),
    ("maxInFlight", SINK, "64m", 64 << 20),
    ("sendBytes", SINK, "1m", 1 << 20),
]  # fmt: skip

# What some of them need beside them.
OF_A_CLUSTER = [row[0] for row in GOOD[[row[0] for row in GOOD].index("namesrv") :]]
BESIDE = {
    "accessKey": {"secretKey": "x"},
    "secretKey": {"accessKey": "x"},
    "securityToken": {"accessKey": "x", "secretKey": "x"},
    "tlsCa": {"tls": "true"},
    "tlsCert": {"tls": "true", "tlsKey": "/k"},
    "tlsKey": {"tls": "true", "tlsCert": "/c"},
    "tlsVerify": {"tls": "true"},
}

# name, where, text, what the error says
BAD = [
    ("view", BATCH, "queue", "did you mean queues"),
    ("view", BATCH, "x", "messages or queues"),
    ("columns", BATCH, " , ", "names separated by commas"),
    ("columns", BATCH, "a,a", "each name once"),
    ("includeBody", BATCH, "yes", "true or false"),
    ("properties", BATCH, "json", "map or raw or none"),
    ("assign", BATCH, "A", "queues such as"),
    ("assign", BATCH, '{"A": 0}', "queues such as"),
    ("assign", BATCH, "A/0,A/0", "each name once"),
    ("subscribePattern", BATCH, "(", "a regular expression"),
    ("startingOffsets", BATCH, "frist", "earliest, latest, group, -1000"),
    ("startingOffsets", BATCH, '{"A/0": -3}', "a number from 0 on"),
    ("startingOffsets", BATCH, '{"A": 5}', "JSON by queue"),
    ("startingOffsets", BATCH, '{"A/0": 1', "a JSON object"),
    ("startingTimestamp", BATCH, "yesterday", "milliseconds since the epoch"),
    ("startingOffsetsByTimestamp", BATCH, '{"*": 5}', "times of named queues"),
    ("startingOffsetsByTimestamp", BATCH, '{"A/0": true}', "times in milliseconds"),
    ("startingOffsetsByTimestampStrategy", BATCH, "fail", "latest or error"),
    ("partitionBytes", BATCH, "0", "a size such as 128m"),
    ("minPartitions", BATCH, "-1", "a whole number above 0"),
    ("verifyCrc", BATCH, "on", "off or fail or skip or mark"),
    ("leaseTtl", BATCH, "1", "a duration such as"),
    ("subscribe", BATCH, "", "names separated"),
    ("group", BATCH, " ", "not empty"),
    ("delivery", SINK, "once", "exactly_once or at_least_once"),
    # not there, or not there
    ("subscribeto", BATCH, "A", "none of this name; did you mean subscribe?"),
    ("zzz", BATCH, "A", "option zzz: there is none of this name"),
    ("maxOffsetsPerTrigger", BATCH, "5", "it is for stream, not for batch"),
    ("topic", BATCH, "5", "it is for sink, not for batch"),
    ("view", STREAM, "files", "it is for batch, not for stream"),
]


@pytest.mark.parametrize("name, where, text, value", GOOD, ids=[f"{row[0]}={row[2]}" for row in GOOD])
def test_accepted_option_values(name: str, where: str, text: str, value: Any) -> None:
    given = {"path": "/store", name: text}
    if name == "paths":
        del given["path"]
    if name in OF_A_CLUSTER:
        given = {"namesrv": "h:1", **BESIDE.get(name, {}), name: text}
    if name == "group":
        given["startingOffsets"] = "group"
    options = parse(given, where)
    field = next(f.name for f in dataclasses.fields(Options) if option_name(f.name) == name)
    assert getattr(options, field) == value
    assert (
        getattr(parse({key.lower(): text for key, text in given.items()}, where), field) == value
    )  # as Spark hands it on


def test_an_options_text_shows_no_secret() -> None:
    options = parse({"namesrv": "h:1", "accessKey": "me", "secretKey": "hidden", "securityToken": "brief"}, BATCH)
    assert not [word for word in ("hidden", "brief") if word in repr(options)]


def test_every_option_is_in_the_list_above() -> None:
    assert {option_name(f.name) for f in dataclasses.fields(Options)} == {row[0] for row in GOOD}


@pytest.mark.parametrize("name, where, text, says", BAD, ids=[f"{row[0]}={row[2]}" for row in BAD])
def test_what_is_refused(name: str, where: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"path": "/store", name: text}, where)
    assert says in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize("given, says", [
    ({}, "option path"),
    ({"path": "/s", "namesrv": "h:1"}, "namesrv and path: expected one of them"),
    ({"paths": "/s,/t", "namesrv": "h:1"}, "namesrv and paths: expected one of them"),
    ({"brokers": "broker-a"}, "option path"),
    ({"path": "/s", "brokers": "broker-a"}, "option brokers: it is for a cluster"),
    ({"path": "/s", "tls": "true"}, "option tls: it is for a cluster"),
    ({"path": "/s", "sqlFilter": "a = 1"}, "option sqlFilter: it is for a cluster"),
    ({"path": "/s", "namespaceV2": "a"}, "option namespaceV2: it is for a cluster"),
    ({"path": "/s", "brokerTimeout": "5s"}, "option brokerTimeout: it is for a cluster"),
    ({"namesrv": "h:1", "leaseTtl": "2h"}, "option leaseTtl: brokers take no leases"),
    ({"namesrv": "h:1", "order": "commitlog"}, "option order: brokers hand out messages by queue"),
    ({"namesrv": "h:1", "accessKey": "a"}, "accessKey and secretKey: expected both"),
    ({"namesrv": "h:1", "securityToken": "a"}, "goes with accessKey"),
    ({"namesrv": "h:1", "tls": "true", "tlsCert": "/c"}, "tlsCert and tlsKey: expected both"),
    ({"namesrv": "h:1", "tlsVerify": "false"}, "option tlsVerify: it needs tls=true"),
    ({"namesrv": "h:1", "tagFilter": "a", "sqlFilter": "b = 1"}, "tagFilter and sqlFilter"),
    ({"namesrv": "h:1", "view": "audit"}, "audit shows files of a store"),
    ({"path": "/s", "subscribe": "A", "assign": "A/0"}, "subscribe and assign: expected one of them"),
    ({"path": "/s", "startingOffsets": "earliest", "startingTimestamp": "1"}, "expected one of them"),
    ({"path": "/s", "endingOffsets": "latest", "endingOffsetsByTimestamp": '{"A/0": 1}'}, "expected one of them"),
    ({"path": "/s", "tagFilter": " || "}, "option tagFilter: expected tags joined by ||"),
    ({"path": "/s", "startingOffsets": "group"}, "group needs the option group"),
    ({"path": "/s", "startingOffsets": '{"A/0": "group"}'}, "group needs the option group"),
    ({"path": "/s", "minPartitions": "9", "maxPartitions": "8"}, "at most maxPartitions"),
])  # fmt: skip
def test_options_that_exclude_each_other_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse(given, BATCH)


def test_a_time_for_all_and_times_for_some_queues_go_together() -> None:
    options = parse({"path": "/s", "startingTimestamp": "9", "startingOffsetsByTimestamp": '{"A/0": 1}'}, BATCH)
    assert options.starting_timestamp == 9


def test_sparks_own_options_are_passed_over() -> None:
    assert parse({"path": "/s", "checkpointLocation": "/c", "queryName": "q"}, SINK) == parse({"path": "/s"}, SINK)


def test_the_reference_has_every_option_with_a_meaning() -> None:
    rows = describe()
    assert [row.name for row in rows] == [option_name(f.name) for f in dataclasses.fields(Options)]
    assert all(row.kind and row.where and row.meaning.endswith(".") for row in rows)
    by_name = {row.name: row for row in rows}
    assert by_name["partitionBytes"].default == "128m"
    assert by_name["verifyCrc"].kind == "off|fail|skip|mark"
    assert by_name["path"].where == "all"

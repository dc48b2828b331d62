"""PushConsumer.from_java: Java's names and units, those of Spring's settings, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from mqfast.client import AsyncPushConsumer, PushConsumer
from mqfast.errors import ConfigError

LEAST: dict[str, str | int | bool] = {"consumerGroup": "g", "namesrvAddr": "a:1;b:2"}


def made(**settings: Any) -> PushConsumer:
    return PushConsumer.from_java({**LEAST, **settings})


def test_each_setting_arrives_in_its_own_unit() -> None:
    consumer = made(
        messageModel="CLUSTERING",
        consumeFromWhere="CONSUME_FROM_FIRST_OFFSET",
        consumeThreadMin="8",
        consumeThreadMax=16,
        pullBatchSize=20,
        pullInterval=1500,
        pullThresholdForQueue=9,
        pullThresholdSizeForQueue=2,
        consumeConcurrentlyMaxSpan=11,
        consumeTimeout=5,
        maxReconsumeTimes=3,
        suspendCurrentQueueTimeMillis=250,
        awaitTerminationMillisWhenShutdown=750,
        instanceName="one",
        accessKey="ak",
        secretKey="sk",
        allocateMessageQueueStrategy="org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle",
    )
    found = consumer._settings
    assert (found.group, found.is_broadcasting, found.from_where, found.threads) == ("g", False, "earliest", 16)
    assert (found.pull_batch, found.pull_interval_s, found.max_cached_messages) == (20, 1.5, 9)
    assert (found.max_cached_bytes, found.max_span, found.consume_timeout_s) == (2 << 20, 11, 300)
    assert (found.max_reconsume_times, found.suspend_s, found.close_timeout_s) == (3, 0.25, 0.75)
    assert consumer._instance_settings.name_servers == ("a:1", "b:2")
    assert consumer._instance_settings.credentials == ("ak", "sk", None)
    assert consumer._allocation.name == "AVG_BY_CIRCLE"
    assert AsyncPushConsumer.from_java({**LEAST, "messageModel": "BROADCASTING"})._settings.is_broadcasting
    assert made(consumeThreadMin=4)._settings.threads == 4
    assert made(consumeThreadNumber=5)._settings.threads == 5


def test_the_consume_timestamp_is_javas_text_or_half_an_hour_ago() -> None:
    found = made(consumeFromWhere="CONSUME_FROM_TIMESTAMP", consumeTimestamp="20131223171201")._settings.from_where
    assert isinstance(found, datetime)
    assert found == datetime(2013, 12, 23, 17, 12, 1).astimezone()
    before = datetime.now().astimezone() - timedelta(minutes=30)
    found = made(consumeFromWhere="CONSUME_FROM_TIMESTAMP")._settings.from_where
    assert isinstance(found, datetime)
    assert timedelta() <= found - before < timedelta(minutes=1)
    assert made(consumeTimestamp="20131223171201")._settings.from_where == "latest"  # as in Java, without the other one


def test_traces_go_to_the_topic_that_is_named() -> None:
    assert made(enableMsgTrace="true", customizedTraceTopic="traces")._tracer is not None
    assert made(enableMsgTrace="false", customizedTraceTopic="traces")._tracer is None


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"consumeThreadMax": "many"}, "consumeThreadMax: expected a whole number, found 'many'"),
        (
            {"consumeThreadMin": 9, "consumeThreadMax": 8},
            "consumeThreadMin: expected at most consumeThreadMax 8, found 9",
        ),
        ({"consumeThreadMax": 0}, "threads: expected 1 to 10000 handlers at once, found 0"),
        ({"consumeFromWere": "x"}, r"no setting is named 'consumeFromWere'; did you mean consumeFromWhere\?"),
        ({"consumeFromWhere": "CONSUME_FROM_FIRST"}, "did you mean CONSUME_FROM_FIRST_OFFSET"),
        ({"consumeTimestamp": "today"}, "consumeTimestamp: expected a local time as 20260131235959, found 'today'"),
        ({"messageModel": "CLUSTER"}, r"model: expected clustering or broadcasting, found 'cluster'; did you mean"),
        (
            {"consumeMessageBatchMaxSize": 16},
            r"consumeMessageBatchMaxSize .* expected batch= of on\(\) and subscribe\(\)",
        ),
        ({"allocateMessageQueueStrategy": "AllocateRandomly"}, "allocation: expected one of AVG"),
        ({"secretKey": "sk"}, "expected both"),
    ],
)
def test_an_invalid_value_is_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        made(**settings)

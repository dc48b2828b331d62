"""Records of logging as messages: their form, what is dropped, and the end of the process."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from mqfast.contrib.logging_handler import RocketMQHandler
from mqfast.errors import ConfigError, MessageIllegal
from mqfast.testing import Broker


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(module_broker: Broker) -> Broker:
    module_broker.reset()
    return module_broker


def logger_with(handler: logging.Handler, name: str = "shop.orders") -> logging.Logger:
    logger = logging.getLogger(name)
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return logger


def test_records_come_as_lines_of_json_with_their_level_as_tag(broker: Broker) -> None:
    handler = RocketMQHandler("app-logs", namesrv_addr=broker.namesrv_addr, level="INFO")
    logger = logger_with(handler)
    logger.debug("not this one")
    logger.info("order %d of %s", 42, "Zoë", extra={"order": 42, "thing": object})
    try:
        raise KeyError("gone")
    except KeyError:
        logger.exception("it failed")
    handler.close()
    info, error = broker.messages("app-logs", tags="INFO") + broker.messages("app-logs", tags="ERROR")
    fields = info.json()
    assert (fields["level"], fields["logger"], fields["message"]) == ("INFO", "shop.orders", "order 42 of Zoë")
    assert (fields["order"], fields["process"], fields["thread"]) == (42, os.getpid(), "MainThread")
    assert fields["thing"] == "<class 'object'>"
    assert fields["time"].endswith("+00:00")
    assert b"\n" not in info.body
    assert "KeyError: 'gone'" in error.json()["exception"]
    assert handler.stats() == {"sent": 2, "dropped": 0, "failed": 0, "waiting": 0}


def test_a_formatter_of_the_user_decides_the_body(broker: Broker) -> None:
    with broker.producer() as producer:
        handler = RocketMQHandler("app-logs", producer=producer)
        handler.setFormatter(logging.Formatter("%(levelname)s|%(message)s"))
        logger_with(handler).warning("w")
        handler.flush()
        broker.assert_sent("app-logs", body="WARNING|w", tags="WARNING", times=1)
        handler.close()
        producer.send("app-logs", b"the producer is the user's, and open")


def test_without_a_broker_logging_does_not_block_and_dropped_records_are_counted() -> None:
    handler = RocketMQHandler("app-logs", namesrv_addr="127.0.0.1:1", capacity=10)
    logger = logger_with(handler)
    begin = time.monotonic()
    for number in range(1000):
        logger.info("line %d", number)
    assert time.monotonic() - begin < 60
    found = handler.stats()
    assert found["sent"] == 0
    assert found["dropped"] + found["failed"] + found["waiting"] == 1000
    assert found["dropped"] > 0
    begin = time.monotonic()
    handler.close()
    assert time.monotonic() - begin < 60
    logger.info("after the end")
    assert handler.stats()["dropped"] == found["dropped"] + 1


def test_the_client_does_not_log_through_the_handler(broker: Broker) -> None:
    handler = RocketMQHandler("app-logs", namesrv_addr=broker.namesrv_addr)
    logger_with(handler, "mqfast.client.producer").warning("about a send")
    logger_with(handler, "mqfast").warning("about a send")
    logger_with(handler, "mqfasting").warning("another one's")
    handler.close()
    assert [one.json()["logger"] for one in broker.messages("app-logs")] == ["mqfasting"]


def test_a_record_without_a_text_is_counted_and_raises_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler = RocketMQHandler("app-logs", namesrv_addr=broker.namesrv_addr)
    logger_with(handler).info("%d", "no number")
    handler.close()
    assert handler.stats()["dropped"] == 1


SCRIPT = """
import logging, sys, time
from mqfast.contrib.logging_handler import RocketMQHandler
logging.basicConfig(handlers=[RocketMQHandler("app-logs", namesrv_addr=sys.argv[1])], level="INFO")
for number in range(200):
    logging.info("line %d", number)
began = time.monotonic()
logging.info("last")
"""


def test_the_last_log_records_are_sent_at_process_exit(broker: Broker) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, broker.namesrv_addr], check=True, timeout=200)
    lines = [json.loads(one.body)["message"] for one in broker.messages("app-logs")]
    assert sorted(lines) == sorted([*(f"line {number}" for number in range(200)), "last"])


def test_the_end_of_a_process_without_a_broker_is_not_held_up() -> None:
    tell = "atexit.register(lambda: print(time.monotonic() - began))\n"  # once before all others, once behind them
    script = "import atexit, time\n" + tell + SCRIPT.lstrip() + tell
    done = subprocess.run(
        [sys.executable, "-c", script, "127.0.0.1:1"], check=True, timeout=200, capture_output=True, text=True
    )
    first, last = map(float, done.stdout.split())
    assert last - first < 3.0, done.stdout


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="producer: expected a Producer, found str"):
        RocketMQHandler("t", producer="127.0.0.1:9876")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="capacity"):
        RocketMQHandler("t", namesrv_addr="127.0.0.1:1", capacity=0)
    for topic in ("", "app logs", 5, None):
        with pytest.raises(MessageIllegal, match="topic: expected"):
            RocketMQHandler(topic, namesrv_addr="127.0.0.1:1")  # type: ignore[arg-type]

"""A number of the wire or of a file is what Java reads: digits and a sign, no underscore, no blank."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from running import running_broker

import mqfast
from mqfast.client.consumer.queue_bounds import number_field
from mqfast.client.settings import consumer_arguments
from mqfast.errors import BrokerError, ConfigError
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand
from mqfast.store.queues.batch_queue import places_in
from mqfast.util.java_text import java_whole

NO_NUMBERS = ("1_000", " 1", "1 ", "1.0", "0x1", "", "+", "\N{MATHEMATICAL BOLD DIGIT ONE}", str(2**63))


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_texts_that_java_refuses_are_no_numbers(text: str) -> None:
    with pytest.raises(ValueError):
        java_whole(text)


@pytest.mark.parametrize(("text", "number"), [("+7", 7), ("-0", 0), ("007", 7), ("\N{ARABIC-INDIC DIGIT SEVEN}", 7)])
def test_texts_that_java_accepts_are_numbers(text: str, number: int) -> None:
    assert java_whole(text) == number


@pytest.mark.parametrize("text", ["1_000", " 1", str(2**63)])
def test_requests_about_offsets_take_no_other_numbers(text: str, tmp_path: Path) -> None:
    async def ask() -> list[int]:
        async with running_broker(tmp_path / "store") as one:
            await one.send("T", b"1")
            group: dict[str, Any] = {"consumerGroup": "g", "topic": "T"}
            answers = [
                await one.call(RequestCode.QUERY_CONSUMER_OFFSET, **group, queueId=text),
                await one.call(RequestCode.UPDATE_CONSUMER_OFFSET, **group, queueId=0, commitOffset=text),
                await one.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="T", queueId=0, timestamp=text),
                await one.call(RequestCode.GET_MAX_OFFSET, topic="T", queueId=text),
            ]
            return [answer.code for answer in answers]

    assert 0 not in asyncio.run(ask())


@pytest.mark.parametrize("text", ["1_000", " 1"])
def test_answers_properties_and_settings_take_no_other_numbers(text: str) -> None:
    with pytest.raises(BrokerError, match="whole number"):
        number_field(RemotingCommand(0, {"offset": text}), "offset", "10.0.0.1:10911")
    assert places_in({"INNER_BASE": "5", "INNER_NUM": text}, 7) == (7, 1)
    with pytest.raises(ConfigError, match="whole number"):
        consumer_arguments({"pullBatchSize": "1_000"})


def test_a_place_where_no_record_begins_is_the_callers_mistake(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as store:
        store.put("T", b"1")
        with mqfast.StoreReader(tmp_path / "store") as reader:
            for place in (5, 10_000_000, -1):
                for where in (store, reader):
                    with pytest.raises(mqfast.errors.OffsetError, match="physical offset"):
                        where.get_by_offset(place)

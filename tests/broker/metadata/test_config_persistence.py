"""New topics and groups: one write for all that wait, and answers that wait for disk and name servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import copy_of_open
from running import Running, running_broker, serve
from waiting import until_async as until

from mqfast.errors import DiskFull
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit
from mqfast.store.meta.config_file import ConfigFile
from mqfast.store.meta.metadata import TopicConfigTable


async def make(one: Running, topic: str) -> RemotingCommand:
    answer: RemotingCommand = await one.call(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, readQueueNums=4, writeQueueNums=4, perm=6,
        topicFilterType="SINGLE_TAG",
    )  # fmt: skip
    return answer


def on_disk(path: Path) -> set[str]:
    return set(json.loads((path / "config/topics.json").read_text())["topicConfigTable"])


@contextlib.contextmanager
def held_writes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """No table of topics is written until the event is set."""
    may, wants = threading.Event(), threading.Event()
    persist = TopicConfigTable.persist

    def held(self: TopicConfigTable) -> bool:
        wants.set()
        assert may.wait(60)
        return persist(self)

    with monkeypatch.context() as patch:
        patch.setattr(TopicConfigTable, "persist", held)
        try:
            yield may, wants
        finally:
            may.set()


def test_many_topics_at_once_are_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bool] = []
    persist = ConfigFile.persist_text

    def noted(self: ConfigFile, make: Callable[[], bytes]) -> bool:
        writes.append(done := persist(self, make))
        return done

    async def flow(one: Running) -> None:
        monkeypatch.setattr(ConfigFile, "persist_text", noted)
        answers = await asyncio.gather(*(make(one, f"t{i}") for i in range(300)))
        assert {answer.code for answer in answers} == {0}
        assert sum(writes) < 100
        assert on_disk(tmp_path) >= {f"t{i}" for i in range(300)}

    serve(tmp_path, flow)


def test_a_table_is_not_parsed_again_for_each_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    parse = ConfigFile._parse

    def noted(self: ConfigFile, data: bytes, path: str) -> Any:
        parsed.append(len(data))
        return parse(self, data, path)

    async def flow(one: Running) -> None:
        await make(one, "first")
        monkeypatch.setattr(ConfigFile, "_parse", noted)
        for i in range(20):
            assert (await make(one, f"t{i}")).code == 0
        assert parsed == []

    serve(tmp_path, flow)


def make_large(one: Running) -> None:
    """Make the tables of topics and groups large enough for a journal."""
    raw = one.context.topics.raw("large", 1, 6)
    one.context.topics.table.put("large", {**raw, "attributes": {"note": "x" * 70_000}})
    group = one.context.groups.table.ensure("large")
    one.context.groups.table.put("large", {**group, "attributes": {"note": "x" * 70_000}})
    one.context.tables.persist()


def test_changes_of_a_large_table_are_in_the_journal_first_and_in_the_file_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[str] = []
    persist = ConfigFile.persist_text

    def noted(self: ConfigFile, make: Callable[[], bytes]) -> bool:
        files.append(Path(self.path).name)
        return persist(self, make)

    async def flow(one: Running) -> None:
        make_large(one)
        with monkeypatch.context() as patch:
            patch.setattr("mqfast.broker.metadata.config_persistence._FILE_S", 3600.0)
            patch.setattr(ConfigFile, "persist_text", noted)
            for i in range(20):
                assert (await make(one, f"t{i}")).code == 0
                one.context.groups.get(f"g{i}")
            await one.context.changes.settled()
            copy_of_open(tmp_path, tmp_path.with_name("killed"))
        assert files == []
        assert "t0" not in on_disk(tmp_path)
        assert (await make(one, "last")).code == 0
        one.context.groups.get("last")
        journals = [tmp_path / "config/topics.json.changes", tmp_path / "config/subscriptionGroup.json.changes"]
        await until(lambda: not any(path.exists() for path in journals))
        assert on_disk(tmp_path) >= {"last", *(f"t{i}" for i in range(20))}
        groups = json.loads((tmp_path / "config/subscriptionGroup.json").read_text())["subscriptionGroupTable"]
        assert groups.keys() >= {"last", *(f"g{i}" for i in range(20))}

    async def after_the_kill(one: Running) -> None:
        for i in range(20):
            assert one.context.topics.get(f"t{i}") is not None
            assert f"g{i}" in one.context.groups.table
        assert on_disk(tmp_path.with_name("killed")) >= {f"t{i}" for i in range(20)}

    serve(tmp_path, flow, flushConsumerOffsetInterval=3_600_000)
    serve(tmp_path.with_name("killed"), after_the_kill)
    assert not (tmp_path / "config/topics.json.changes").exists()


def test_no_send_to_a_new_topic_is_acknowledged_before_the_topic_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flow(one: Running) -> None:
        with held_writes(monkeypatch) as (may, wants):
            first = asyncio.ensure_future(one.send("new", b"1"))
            await until(wants.is_set)
            second = asyncio.ensure_future(one.send("new", b"2"))
            third = asyncio.ensure_future(one.send("new", b"3"))
            assert (
                await one.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            ).code == 0  # behind all three, by one connection
            assert not first.done()
            assert not second.done()
            assert not third.done()
            may.set()
            for send in (first, second, third):
                assert (await send).code == 0
        assert "new" in on_disk(tmp_path)
        assert (await one.send("new", b"4")).code == 0

    serve(tmp_path, flow)


def test_a_table_that_cannot_be_written_is_an_error_and_is_written_by_the_next_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: TopicConfigTable) -> bool:
        raise DiskFull(28, "no space left")

    async def flow(one: Running) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(TopicConfigTable, "persist", full)
            for _ in range(2):
                refused = await one.send("new", b"1")
                assert refused.code != 0
                assert "no space left" in (refused.remark or "")
        assert (await one.send("new", b"2")).code == 0
        assert "new" in on_disk(tmp_path)

    serve(tmp_path, flow)


@contextlib.asynccontextmanager
async def slow_name_server(tmp_path: Path) -> AsyncIterator[tuple[NameServer, asyncio.Event, list[str]]]:
    """A name server that takes a topic (217) only once the event is set; and the topics that came."""
    config = NamesrvConfig()
    config.update({"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")}, "test")
    server = NameServer(config)
    await server.start()
    may, came = asyncio.Event(), list[str]()
    serve_it, _ = server.processors._table[RequestCode.REGISTER_TOPIC_IN_NAMESRV]

    async def late(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        came.append(request.ext_fields["topic"])
        await may.wait()
        answer = serve_it(channel, request)
        assert isinstance(answer, RemotingCommand)
        return answer

    server.processors.register([RequestCode.REGISTER_TOPIC_IN_NAMESRV], late, ConcurrencyLimit("late"))
    try:
        yield server, may, came
    finally:
        may.set()
        await server.stop()


def test_an_acknowledged_message_has_a_route_however_its_topic_was_made(tmp_path: Path) -> None:
    async def flow() -> None:
        async with slow_name_server(tmp_path) as (server, may, came):
            namesrv = "{}:{}".format(*server.address)
            async with asyncio.timeout(300), running_broker(tmp_path / "m", namesrvAddr=namesrv) as one:
                may.set()
                for topic in ("known", "%RETRY%g"):
                    assert (await one.send(topic, b"x")).code == 0
                may.clear()
                sent = asyncio.ensure_future(one.send("new", b"x"))
                given_back = asyncio.ensure_future(
                    one.call(
                        RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="g", delayLevel=-1, originTopic="known",
                        unitMode=False,
                    )
                )  # fmt: skip
                await until(lambda: {"new", "%DLQ%g"} <= set(came))
                assert (await one.send("known", b"x")).code == 0  # does not wait for others
                assert not sent.done()
                assert not given_back.done()
                may.set()
                for answer in (sent, given_back):
                    assert (await answer).code == 0
                assert {"new", "%DLQ%g"} <= set(server.tables.topics())

    asyncio.run(flow())


def test_answers_wait_once_for_a_name_server_that_does_not_answer(tmp_path: Path) -> None:
    async def flow() -> None:
        async with slow_name_server(tmp_path) as (server, may, came):
            namesrv = "{}:{}".format(*server.address)
            async with asyncio.timeout(300), running_broker(tmp_path / "m", namesrvAddr=namesrv) as one:
                registration = one.context.registration
                assert (await one.send("first", b"x")).code == 0
                assert came == ["first"]
                assert registration.under_way() == []  # nothing waits for this name server any more
                assert (await one.send("second", b"x")).code == 0
                may.set()
                await registration.wait_registered()
                assert {"first", "second"} <= set(server.tables.topics())
                may.clear()
                third = asyncio.ensure_future(one.send("third", b"x"))
                await until(lambda: "third" in came)
                assert registration.under_way()  # it has answered again
                may.set()
                assert (await third).code == 0

    asyncio.run(flow())

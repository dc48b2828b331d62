"""Many groups and topics at once: a heartbeat that makes them writes each table once; lists that no frame holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import Running, serve

from mqfast.remoting.codes import RequestCode
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.config_file import ConfigFile
from mqfast.store.meta.metadata import SubscriptionGroupTable, TopicConfigTable


def heartbeat(groups: list[str]) -> bytes:
    consumers = [{"groupName": g, "subscriptionDataSet": [{"topic": "T", "subString": "*"}]} for g in groups]
    return json.dumps({"clientID": "c", "consumerDataSet": consumers, "producerDataSet": []}).encode()


def test_what_a_heartbeat_makes_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    persist = ConfigFile.persist_text

    def noted(self: ConfigFile, *args: object, **more: object) -> bool:
        done = persist(self, *args, **more)  # type: ignore[arg-type]
        written.extend([Path(self.path).name] if done else [])
        return done

    groups = [f"group-{i}" for i in range(500)]

    async def flow(one: Running) -> None:
        monkeypatch.setattr(ConfigFile, "persist_text", noted)
        assert (await one.call(RequestCode.HEART_BEAT, heartbeat(groups))).code == 0
        assert sorted(written) == ["subscriptionGroup.json", "topics.json"]
        # It is there before the answer, not with the next write by the clock.
        kept = json.loads((tmp_path / "config/subscriptionGroup.json").read_text())["subscriptionGroupTable"]
        assert kept.keys() >= set(groups)
        topics = json.loads((tmp_path / "config/topics.json").read_text())["topicConfigTable"]
        assert topics.keys() >= {f"%RETRY%{group}" for group in groups}
        for group in ("group-0", "group-499"):
            assert one.context.consumers.group(group) is not None
        # Both tables are large now: the next change goes to their journals.
        assert (await one.call(RequestCode.HEART_BEAT, heartbeat([*groups, "late"]))).code == 0
        assert "late" in SubscriptionGroupTable.load(OsApi(), str(tmp_path / "config/subscriptionGroup.json"))
        assert "%RETRY%late" in TopicConfigTable.load(OsApi(), str(tmp_path / "config/topics.json"))
        changes = one.context.changes.count
        assert (await one.call(RequestCode.HEART_BEAT, heartbeat(groups))).code == 0
        assert one.context.changes.count == changes

    serve(tmp_path, flow)


def test_a_list_that_no_frame_holds_is_refused_and_the_connection_stays(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
        assert (await one.call(RequestCode.HEART_BEAT, heartbeat([f"g{i}" for i in range(200)]))).code == 0
        for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
            answer = await one.call(code)
            assert answer.code == 1
            assert "bytes, more than the 20000 of a frame" in (answer.remark or "")
        assert (await one.send("T", b"42")).code == 0

    serve(tmp_path, flow, frameMaxLength=20_000)

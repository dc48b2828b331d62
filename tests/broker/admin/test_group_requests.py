"""Consumer groups by admin requests to a running broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import Running, serve

DEFAULTS = {
    "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
    "consumeFromMinEnable": True, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15, "groupName": "g",
    "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16, "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1,
}  # fmt: skip


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_a_group_is_made_changed_and_asked_for(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(200, text({"groupName": "g"}))).code == 0
        assert json.loads((await one.call(352, group="g")).body) == DEFAULTS
        changed = {"groupName": "g", "retryMaxTimes": 3, "consumeBroadcastEnable": False, "newField": [1]}
        changed["groupRetryPolicy"] = {"type": "EXPONENTIAL"}
        assert (await one.call(200, text(changed))).code == 0
        assert json.loads((await one.call(352, group="g")).body) == {**DEFAULTS, **changed}
        assert (await one.call(200)).code == 0, "an empty body changes nothing"

    serve(tmp_path, flow)
    table = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
    assert table["g"]["retryMaxTimes"] == 3
    assert table["g"]["newField"] == [1]


@pytest.mark.parametrize(
    ("group", "code", "remark"),
    [
        ({}, 29, "The specified group is blank."),
        ({"groupName": "a/b"}, 29, "The specified group: a/b, contains illegal characters, allowing only"),
        ({"groupName": "../x"}, 29, "The specified group: ../x, contains illegal characters, allowing only"),
        ({"groupName": "g" * 121}, 29, f"The specified group: {'g' * 121}, is longer than group max length: 120"),
        ({"groupName": "g", "retryQueueNums": -1}, 29, "retryQueueNums: expected 0 to 1024, found -1"),
        ({"groupName": "g", "retryMaxTimes": "many"}, 1, "FieldError: field body: expected the settings of a group"),
        ({"groupName": "g", "attributes": {"+x": "y"}}, 1, "unsupported key: x"),
    ],
)
def test_settings_that_may_not_be_are_refused(tmp_path: Path, group: dict[str, Any], code: int, remark: str) -> None:
    async def flow(one: Running) -> None:
        before = set(one.context.groups.table)
        for answer in (
            await one.call(200, text(group)),
            await one.call(225, text({"groupConfigList": [{"groupName": "ok"}, group]})),
        ):
            assert answer.code == code
            assert str(answer.remark).startswith(remark)
        assert set(one.context.groups.table) == before

    serve(tmp_path, flow)


def test_several_groups_at_once_and_all_groups(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(225, text({"groupConfigList": [{"groupName": "a"}, {"groupName": "b"}]}))).code == 0
        answer = await one.call(201)
        found = json.loads(answer.body)
        table = found["subscriptionGroupTable"]
        assert {"a", "b", "TOOLS_CONSUMER"} <= set(table)
        assert table["a"] == {**DEFAULTS, "groupName": "a"}
        assert answer.ext_fields["totalGroupNum"] == str(len(table))
        assert found["dataVersion"] == one.context.groups.table.data_version

    serve(tmp_path, flow)


@pytest.mark.parametrize(("field", "kept"), [("cleanOffset", False), ("removeOffset", False), (None, True)])
def test_a_deleted_group_leaves_its_offsets_only_where_they_are_to_stay(
    tmp_path: Path, field: str | None, kept: bool
) -> None:
    async def flow(one: Running) -> None:
        await one.call(200, text({"groupName": "g"}))
        one.context.offsets.commit("g", "T", 0, 7)
        more = {} if field is None else {field: "true"}
        assert (await one.call(207, groupName="g", **more)).code == 0
        assert "g" not in one.context.groups.table
        assert one.context.offsets.get("g", "T", 0) == (7 if kept else -1)

    serve(tmp_path, flow)


def test_a_group_that_is_made_anew_may_read_what_was_forbidden_to_the_deleted_one(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await one.call(200, text({"groupName": "g"}))
        for group in ("g", "other", "no group"):
            assert (await one.call(353, group=group, topic="T", readable="false")).code == 0
        for group in ("g", "no group"):
            assert (await one.call(207, groupName=group)).code == 0
        await one.call(200, text({"groupName": "g"}))
        for group, readable in (("g", True), ("other", False), ("no group", True)):
            assert json.loads((await one.call(353, group=group, topic="T")).body)["readable"] is readable

    serve(tmp_path, flow)
    table = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    assert table["forbiddenTable"] == {"other": {"T": 4}}


def test_offsets_that_go_with_their_group_are_gone_from_the_disk_when_the_answer_comes(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerOffset.json"

    async def flow(one: Running) -> None:
        await one.call(200, text({"groupName": "g"}))
        for group in ("g", "other"):
            one.context.offsets.commit(group, "T", 0, 7)
        one.context.offsets.persist()
        assert b'"T@g":' in path.read_bytes()
        assert (await one.call(207, groupName="g", cleanOffset="true")).code == 0
        assert b'"T@g":' not in path.read_bytes()
        assert b'"T@other":' in path.read_bytes()

    serve(tmp_path, flow, flushConsumerOffsetInterval=3_600_000)


def test_an_unknown_group_is_made_only_where_groups_may_be_made(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(352, group="new")).code == 0
        one.context.config.update({"autoCreateSubscriptionGroup": "false"}, "test")
        answer = await one.call(352, group="other")
        assert (answer.code, answer.remark) == (26, "No group in this broker")

    serve(tmp_path, flow)


def test_a_topic_is_forbidden_to_a_group_and_allowed_again(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        async def readable(topic: str, **more: Any) -> bool:
            answer = await one.call(353, group="g", topic=topic, **more)
            assert answer.code == 0
            found = json.loads(answer.body)
            assert (found["group"], found["topic"]) == ("g", topic)
            return bool(found["readable"])

        assert await readable("T")
        assert not await readable("T", readable="false")
        assert not await readable("U", readable="false")
        assert not await readable("T")
        assert json.loads((await one.call(201)).body)["forbiddenTable"] == {"g": {"T": 4, "U": 4}}
        assert await readable("T", readable="true")
        assert not await readable("U"), "only the one topic is allowed again"
        assert not one.context.groups.may_read("g", "U")

    serve(tmp_path, flow)
    assert json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())["forbiddenTable"] == {"g": {"U": 4}}

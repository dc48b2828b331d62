"""Findings: what is wrong in a cluster, as sentences with a place to look, the worst first.

Must never name a cause that was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import quote

from mqfast.console.members import MemberState
from mqfast.console.state import ClusterState, GroupState, Unknown, known
from mqfast.console.values import age_text, count_text
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX

__all__ = ["DISK_MARKS", "Finding", "findings", "group_sentence"]

DISK_MARKS: Final = ((0.75, "cleaning starts at 75 %"), (0.85, "forced cleaning at 85 %"), (0.9, "no writes at 90 %"))
_LATE_S: Final = 60.0


class Finding(NamedTuple):
    """A sentence. Attributes: level: ``bad`` or ``warn``; where: address of the page to look at."""

    level: str
    text: str
    where: str


def group_sentence(group: GroupState, members: list[MemberState] | Unknown | None = None) -> str:
    """Return what is known about a late group: how late, where, and which member holds messages."""
    lag, bound = int(known(group.lag)), "at least " if group.age_is_least else ""
    worst = max(group.places, key=lambda place: place.behind, default=None)
    place = "" if worst is None else f" on {_plain(worst.topic)} queue {worst.queue_id}"
    text = f"group {group.name} is {bound}{age_text(group.age_s)} behind{place}: {count_text(lag)} messages wait"
    for member in members if isinstance(members, list) else ():
        if member.stuck:
            longest = max(member.stuck, key=lambda queue: queue.held_s)
            more = f", and of {len(member.stuck) - 1} more queues" if len(member.stuck) > 1 else ""
            text += (
                f"; member {member.client_id} is stuck for {age_text(longest.held_s)} in message "
                f"{longest.first_offset} of {_plain(longest.topic)} queue {longest.queue_id}{more}"
            )
    if group.member_count == 0:
        text += "; no member is connected"
    elif known(group.rate, 1.0) == 0:
        text += "; nothing was consumed since the last round"
    return text


def findings(state: ClusterState, stuck: dict[str, list[MemberState]]) -> list[Finding]:
    """Return all findings. Args: stuck: members that hold messages, by group."""
    all_findings = [*_of_servers(state), *_of_groups(state, stuck), *_of_letters(state)]
    return sorted(all_findings, key=lambda finding: finding.level != "bad")


def _of_servers(state: ClusterState) -> Iterator[Finding]:
    if state.error:
        yield Finding("bad", f"the name servers did not answer: {state.error}", "/brokers")
    for broker in state.brokers.values():
        where = f"/brokers/{quote(broker.name, safe='')}"
        for subject, error in broker.errors.items():
            yield Finding("bad", f"broker {broker.name}, {subject}: {error}", where)
        if 0 not in broker.addresses:
            yield Finding("bad", f"broker {broker.name} has no master", where)
        disk = known(broker.number("commitLogDiskRatio"))
        if disk >= DISK_MARKS[0][0]:
            passed = [text for at, text in DISK_MARKS if disk >= at]
            level = "bad" if disk >= DISK_MARKS[1][0] else "warn"
            yield Finding(level, f"broker {broker.name}: the disk is {disk:.0%} full; {passed[-1]}", where)


def _of_groups(state: ClusterState, stuck: dict[str, list[MemberState]]) -> Iterator[Finding]:
    for group in state.groups_behind(20):
        members = stuck.get(group.name)
        is_stuck = any(member.stuck for member in members or ())
        if is_stuck or known(group.age_s) >= _LATE_S or group.age_is_least or group.member_count == 0:
            level = "bad" if is_stuck or known(group.age_s) >= _LATE_S else "warn"
            yield Finding(level, group_sentence(group, members), f"/groups/{quote(group.name, safe='')}")


def _of_letters(state: ClusterState) -> Iterator[Finding]:
    for name, topic in state.topics.items():
        if name.startswith(DLQ_PREFIX) and known(topic.messages) > 0:
            group = name.removeprefix(DLQ_PREFIX)
            text = f"group {group} has {count_text(topic.messages)} dead letters"
            yield Finding("warn", text, f"/dlq/{quote(group, safe='')}")


def _plain(topic: str) -> str:
    return "its retry topic" if topic.startswith(RETRY_PREFIX) else topic

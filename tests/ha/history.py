"""What clients of a fail-over saw, and whether that can be true of one log: acknowledged sends beside the final store.

Room: tests/ha. It must never look at a broker's memory: only at answers, at the store and at its epochs.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

__all__ = ["Figures", "Send", "Stored", "faults_of", "figures_of", "read_history"]


class Send(NamedTuple):
    """One attempt. ``broker``: id; ``code``: of the answer, -1 without one; offsets: -1 without an acknowledgement."""

    began_s: float
    ended_s: float
    queue: int
    body: str
    broker: int
    code: int
    queue_offset: int = -1
    physical: int = -1


class Leading(NamedTuple):
    """Who had the lease from then on, as etcd said; None: nobody."""

    at_s: float
    broker: int | None
    epoch: int


class Stored(NamedTuple):
    """One message of the final log."""

    body: str
    queue_offset: int
    physical: int


class Figures(NamedTuple):
    """How it went.

    Attributes: take_overs_s: from the moment at which etcd showed no leader to the first send acknowledged by a new
        one; loss_windows_s: how long each run of lost acknowledged sends was.
    """

    sends: int
    acknowledged: int
    lost: int
    epochs: int
    take_overs_s: list[float]
    loss_windows_s: list[float]


def read_history(path: Path) -> tuple[list[Send], list[Leading]]:
    """The file that the clients' process writes; its last line may be torn."""
    sends, leading = [], []
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row[0] == "send":
            sends.append(Send(*row[1:]))
        else:
            leading.append(Leading(*row[1:]))
    return sends, leading


def _acknowledged(sends: Iterable[Send]) -> list[Send]:
    return sorted((one for one in sends if one.code == 0), key=lambda one: one.ended_s)


def faults_of(
    sends: Sequence[Send],
    stored: Mapping[int, Sequence[Stored]],
    epochs: Sequence[tuple[int, int]],
    masters: Mapping[int, int],
    *,
    may_lose: bool = False,
) -> list[str]:
    """What cannot be.

    Args: stored: queue -> its messages in order; epochs: (epoch, first physical offset) of the final log; masters:
        epoch -> broker id, as etcd gave them; may_lose: with ASYNC_MASTER.
    """
    faults = []
    places: dict[str, list[Stored]] = {}
    for messages in stored.values():
        for one in messages:
            places.setdefault(one.body, []).append(one)
    starts = [start for _, start in epochs]
    newest: dict[int, Send] = {}
    first_end: dict[int, float] = {}
    last_begin: dict[int, Send] = {}
    for send in _acknowledged(sends):
        found = places.get(send.body, [])
        if not found:
            if not may_lose:
                faults.append(f"lost: {send}")
            continue
        if len(found) > 1:
            faults.append(f"stored {len(found)} times: {send}")
        if (found[0].queue_offset, found[0].physical) != (send.queue_offset, send.physical):
            faults.append(f"acknowledged at another place than {found[0]}: {send}")
        before = newest.get(send.queue)
        if before is not None and before.queue_offset >= send.queue_offset:
            faults.append(f"order: {send} stands before {before}")
        newest[send.queue] = send
        at = bisect_right(starts, send.physical) - 1
        epoch = epochs[at][0] if at >= 0 else -1
        if masters.get(epoch) != send.broker:
            faults.append(f"epoch {epoch} is of broker {masters.get(epoch)}: {send}")
        first_end.setdefault(epoch, send.ended_s)
        if epoch not in last_begin or send.began_s > last_begin[epoch].began_s:
            last_begin[epoch] = send
    known = sorted(first_end)
    for older, newer in pairwise(known):
        if last_begin[older].began_s > first_end[newer]:
            faults.append(f"epoch {older} took a message after epoch {newer} did: {last_begin[older]}")
    return faults


def figures_of(sends: Sequence[Send], leading: Sequence[Leading], stored: Mapping[int, Sequence[Stored]]) -> Figures:
    """How it went."""
    acknowledged = _acknowledged(sends)
    windows: list[list[float]] = []
    bodies = {one.body for messages in stored.values() for one in messages}
    take_overs = []
    for gone, there in pairwise(leading):
        if gone.broker is None and there.broker is not None:
            first = next((s for s in acknowledged if s.ended_s > gone.at_s and s.broker == there.broker), None)
            if first is not None:
                take_overs.append(first.ended_s - gone.at_s)
    for one in acknowledged:
        if one.body in bodies:
            continue
        if not windows or one.ended_s - windows[-1][1] > 1.0:
            windows.append([one.ended_s, one.ended_s])
        windows[-1][1] = one.ended_s
    return Figures(
        len(sends),
        len(acknowledged),
        sum(one.body not in bodies for one in acknowledged),
        len({one.epoch for one in leading if one.broker is not None}),
        take_overs,
        [last - first for first, last in windows],
    )

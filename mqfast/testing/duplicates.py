"""The fault of duplicate deliveries: the messages of every n-th pull are delivered exactly twice.

A push consumer skips messages that its handler still has, so the second delivery waits until the group is done: until
then the next pull is answered without messages. A broadcasting consumer reports no progress, and gets the messages a
moment later; pull consumers get the messages with the next pull. No message is delivered three times, and no other
answer is changed. Thread: that of the event loop.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from mqfast.broker.metadata.client_manager.consumer_manager import ConsumerGroup
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand, pull_header
from mqfast.remoting.heartbeat import CLUSTERING, PASSIVELY

__all__ = ["POLL_S", "Duplicates", "QueueOffset", "Reader", "place_of"]

POLL_S: Final = 0.02
_PATIENCE_S: Final = 5.0  # for a group that stores its offsets itself, and so reports no progress
_MOMENT_S: Final = 0.1
_COMMITS: Final = 1  # bit of a pull's sysFlag
_OFFSET_AT: Final = 20  # of a record


class QueueOffset(NamedTuple):
    """A queue of a broker, for one group."""

    broker: str
    group: str
    topic: str
    queue_id: int


def place_of(server: str, request: RemotingCommand) -> tuple[QueueOffset, int]:
    """Return the queue and the offset of a pull."""
    header = pull_header(request)
    return QueueOffset(server, header.consumer_group, header.topic, header.queue_id), header.queue_offset


class Reader(NamedTuple):
    """The source of a pull. Attributes: ``client``: id of a client that reads alone, empty for a group that shares
    queues; ``grace_s``: time limit for the end of the first delivery; ``is_member``: of a group with heartbeats, rather
    than a tool that pulls any queue.
    """

    client: str = ""
    grace_s: float = 0.0
    is_member: bool = False

    @classmethod
    def of(cls, group: ConsumerGroup | None, channel: Channel) -> Reader:
        """Return the reader by the group's heartbeats."""
        if group is None or group.consume_type != PASSIVELY:
            return cls(is_member=group is not None)
        if group.message_model == CLUSTERING:
            return cls(grace_s=_PATIENCE_S, is_member=True)
        owner = group.members.get(channel)
        return cls(owner.client_id if owner is not None else "", _MOMENT_S, is_member=True)


class _Range:
    """Messages with a second delivery. Attributes: ``waits``: until the first delivery is done, or for ``until_s``."""

    __slots__ = ("begin", "end", "until_s", "waits")

    def __init__(self, begin: int, end: int, grace_s: float) -> None:
        self.begin, self.end, self.waits = begin, end, grace_s > 0
        self.until_s = time.monotonic() + grace_s


class Duplicates:
    """The messages with a second delivery, and their times.

    Args: every: every n-th pull; 0: the fault is off; reader: of a pull.
    """

    def __init__(self, every: Callable[[], int], reader: Callable[[QueueOffset, Channel], Reader]) -> None:
        self._every: Final = every
        self._reader: Final = reader
        self._ranges: dict[tuple[QueueOffset, str], _Range] = {}
        self._done: dict[tuple[QueueOffset, str], int] = {}  # offsets below were delivered twice
        self._pulls = 0

    def clear(self) -> None:
        """Cancel all second deliveries."""
        self._ranges.clear()
        self._done.clear()

    def instead(self, server: str, request: RemotingCommand, channel: Channel) -> RemotingCommand | None:
        """Return the answer to a pull that must wait for a second delivery before; None: serve the pull."""
        place, offset = place_of(server, request)
        given = self._ranges.get((place, self._reader(place, channel).client))
        if given is None or not given.waits or offset != given.end or not self._every():
            return None
        header = pull_header(request)
        told = header.sys_flag & _COMMITS and header.commit_offset >= given.end
        if told or time.monotonic() > given.until_s:
            given.waits = False
        after = given.end if given.waits else given.begin
        fields = {
            "suggestWhichBrokerId": "0", "nextBeginOffset": str(after), "minOffset": "0", "maxOffset": str(given.end),
        }  # fmt: skip
        return request.response(ResponseCode.PULL_NOT_FOUND, fields, remark="messages come again")

    def of(self, server: str, request: RemotingCommand, answer: RemotingCommand, channel: Channel) -> RemotingCommand:
        """Return the answer to a served pull, truncated at the end of the messages with a second delivery."""
        every = self._every()
        if not every:
            return answer
        place, offset = place_of(server, request)
        reader, behind = self._reader(place, channel), int(answer.ext_fields["nextBeginOffset"])
        key = place, reader.client
        owner = self._ranges.get(key)
        if owner is not None and offset < owner.end:
            if not owner.waits and behind >= owner.end:
                del self._ranges[key]
                self._done[key] = owner.end
            return _cut(request, answer, owner.end)
        if offset < self._done.get(key, 0):
            return _cut(request, answer, self._done[key])
        self._pulls += 1
        if self._pulls % every:
            return answer
        self._ranges[key] = _Range(offset, behind, reader.grace_s)
        return answer if reader.grace_s else _going_on_at(request, answer, offset)


def _going_on_at(
    request: RemotingCommand, answer: RemotingCommand, offset: int, body: bytes | None = None
) -> RemotingCommand:
    fields = {**answer.ext_fields, "nextBeginOffset": str(offset)}
    return request.response(answer.code, fields, answer.body if body is None else body, remark=answer.remark)


def _cut(request: RemotingCommand, answer: RemotingCommand, end: int) -> RemotingCommand:
    """Return the answer without messages from an offset on."""
    if int(answer.ext_fields["nextBeginOffset"]) <= end:
        return answer
    body = answer.body if isinstance(answer.body, (bytes, bytearray, memoryview)) else b"".join(answer.body)
    at = 0
    while at < len(body) and struct.unpack_from(">q", body, at + _OFFSET_AT)[0] < end:
        at += struct.unpack_from(">i", body, at)[0]
    return _going_on_at(request, answer, end, bytes(body[:at]))

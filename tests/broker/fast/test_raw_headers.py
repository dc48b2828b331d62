"""Headers as reactors read them: equal to what the codec reads, or left to Python."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

import pytest
from raw_frames import strange_frame
from sampling import LONG

from mqfast.errors import FieldError
from mqfast.remoting.command import FrameDecoder, send_header

FRAMES = Path(__file__).resolve().parents[2] / "remoting" / "frames"
send_request = pytest.importorskip("mqfast.broker.fast.send_request", reason="reactors need epoll")


def agrees(frame: bytes) -> bool:
    """Return whether reactors read this frame's header; then the codec reads the same."""
    size = int.from_bytes(frame[5:8], "big")
    fields = send_request.parsed(frame[8 : 8 + size], frame[4])
    if fields is None:
        return False
    decoder = FrameDecoder()
    (command,) = decoder.feed(frame)
    assert decoder.error is None
    header = send_header(command)
    assert not header.batch
    topic = fields[1].decode("utf-8", "replace")  # bytes that are no text name no topic of the table
    assert (topic, *fields[:1], *fields[2:]) == (
        header.topic, command.opaque, header.queue_id, header.sys_flag, header.born_timestamp, header.flag,
        header.properties, header.reconsume_times,
    )  # fmt: skip
    return True


def is_send(frame: bytes) -> bool:
    """Return whether a recorded frame is a request to store a single message."""
    (command,) = FrameDecoder().feed(frame)
    return not command.flag & 3 and command.code in (10, 310)


def mutated(chance: random.Random, frame: bytes) -> bytes:
    """The frame with some bytes of its header changed, cut out or repeated; the lengths fit."""
    size = int.from_bytes(frame[5:8], "big")
    header, body = bytearray(frame[8 : 8 + size]), frame[8 + size :]
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(header))
        kind = chance.randrange(4)
        if kind == 0:
            header[at] = chance.choice(b'"\\{}[]:,0129-+.eEtfn\0\1\2\x7f\x80\xff')
        elif kind == 1:
            del header[at : at + chance.choice((1, 2, 8))]
        elif kind == 2:
            header[at:at] = header[at : at + chance.choice((1, 4, 16))]
        else:
            header[at] ^= 1 << chance.randrange(8)
    total = 4 + len(header) + len(body)
    return total.to_bytes(4, "big") + frame[4:5] + len(header).to_bytes(3, "big") + bytes(header) + body


def test_reactors_read_what_the_codec_reads() -> None:
    chance = random.Random(7)
    read = 0
    for number in range(100_000 if LONG else 5000):
        frame = strange_frame(chance, number, "T")
        read += agrees(frame)
        for _ in range(3):
            try:
                agrees(mutated(chance, frame))
            except FieldError as error:
                raise AssertionError(f"the codec refuses what reactors read: {error}: {frame!r}") from error
    assert read > 1000


def test_reactors_read_the_sends_of_real_clients() -> None:
    frames: list[bytes] = []
    for path in sorted(FRAMES.glob("*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            frames += [bytes.fromhex(json.loads(line)[5]) for line in file]
    frames = [frame for frame in frames if is_send(frame)]
    assert len(frames) > 20
    assert sum(map(agrees, frames)) > len(frames) // 2

"""Compressed bodies have a limit that holds while they grow."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from mqfast.client import Producer, PullConsumer
from mqfast.client.decompression import decompressed
from mqfast.client.delivery import Delivery
from mqfast.errors import FieldError
from mqfast.message import SysFlag
from mqfast.testing import Broker

ZLIB = SysFlag.COMPRESSED
LZ4 = ZLIB | SysFlag.COMPRESSION_LZ4
ZSTD = ZLIB | SysFlag.COMPRESSION_ZSTD


def _zstd_without_size(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=False).compress(body)


def _zstd_that_lies(body: bytes) -> bytes:
    """A frame whose head tells a smaller size than it has."""
    packed = bytearray(zstandard.ZstdCompressor(level=1).compress(body))
    sizes = {0: 1, 1: 2, 2: 4, 3: 8}
    at = 5 if packed[4] & 0x20 else 6  # behind the descriptor, and the window where there is one
    width = sizes[packed[4] >> 6]
    packed[at : at + width] = (100).to_bytes(width, "little")
    return bytes(packed)


def _lz4_that_lies(body: bytes) -> bytes:
    packed = bytearray(lz4.frame.compress(body, store_size=True, content_checksum=False))
    packed[6:14] = (100).to_bytes(8, "little")
    packed[14] = _checksum_of_head(bytes(packed[4:14]))
    return bytes(packed)


def _checksum_of_head(head: bytes) -> int:
    for guess in range(256):
        try:
            lz4.frame.get_frame_info(b"\x04\x22\x4d\x18" + head + bytes([guess]))
        except RuntimeError:
            continue
        return guess
    raise AssertionError("no checksum fits")


PACKS: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "zlib": (zlib.compress, ZLIB),
    "lz4": (lz4.frame.compress, LZ4),
    "zstd": (zstandard.ZstdCompressor(level=1).compress, ZSTD),
    "zstd without its size": (_zstd_without_size, ZSTD),
}


@pytest.mark.parametrize("kind", PACKS)
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 100_000])
def test_a_body_up_to_the_limit_is_whole(kind: str, size: int) -> None:
    pack, flag = PACKS[kind]
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert decompressed(memoryview(pack(body)), flag, max(1, size)) == body
    assert decompressed(memoryview(pack(body)), flag) == body


@pytest.mark.parametrize("kind", PACKS)
@pytest.mark.parametrize("size", [1001, 100_000, 5_000_000])
def test_a_larger_body_is_an_error_that_names_the_setting(kind: str, size: int) -> None:
    pack, flag = PACKS[kind]
    with pytest.raises(FieldError, match=r"at most 1000 bytes when it is decompressed.*max_body_bytes"):
        decompressed(memoryview(pack(bytes(size))), flag, 1000)


@pytest.mark.parametrize("kind", PACKS)
def test_a_body_that_is_cut_short_is_an_error(kind: str) -> None:
    pack, flag = PACKS[kind]
    packed = pack(bytes(range(256)) * 100)
    for end in (len(packed) - 1, len(packed) // 2, 8):
        with pytest.raises(FieldError, match=r"whole|to its end"):
            decompressed(memoryview(packed)[:end], flag)


@pytest.mark.parametrize(("pack", "flag"), [(_zstd_that_lies, ZSTD), (_lz4_that_lies, LZ4)])
def test_a_wrong_size_in_a_frame_header_does_not_exceed_the_limit(pack: Callable[[bytes], bytes], flag: int) -> None:
    with pytest.raises(FieldError):
        decompressed(memoryview(pack(bytes(5_000_000))), flag, 1_000_000)


CHILD = """
import resource, sys
import lz4.frame, zstandard
from mqfast.client import Producer, PullConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.decompression import decompressed
from mqfast.errors import FieldError
data = open(sys.argv[1], "rb").read()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
try:
    decompressed(memoryview(data), int(sys.argv[2]))
except FieldError:
    print(peak() - before)
"""


@pytest.mark.parametrize("kind", PACKS)
def test_the_limit_holds_while_the_body_grows(kind: str, tmp_path: Path) -> None:
    pack, flag = PACKS[kind]
    path = tmp_path / "packed"
    path.write_bytes(pack(bytes(500 << 20)))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(int(flag))], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 150, "MiB"


SMALL, LARGE = b"s" * 5000, b"l" * 100_000


def _send_all(broker: Broker) -> None:
    with Producer("makers", broker.namesrv_addr, compress_over_bytes=1000) as producer:
        for body in (SMALL, LARGE, SMALL):
            producer.send("orders", body)


@pytest.mark.parametrize("reads", [True, False])
def test_a_message_above_max_body_bytes_goes_to_the_dead_letter_queue_and_the_others_are_handled(reads: bool) -> None:
    with Broker(
        topics={"orders": 1}, groups=["readers"], config={"messageDelayLevel": " ".join(["0s"] * 18)}
    ) as broker:
        _send_all(broker)
        seen: list[bytes] = []

        def handle(message: Delivery) -> None:
            seen.append(message.body if reads else bytes(message.view))

        consumer = broker.consumer("readers", max_body_bytes=10_000, max_reconsume_times=1)
        consumer.subscribe("orders", handle)
        with consumer:
            broker.wait_until(lambda: len(seen) >= (2 if reads else 3), timeout_s=30)
            if reads:
                broker.wait_until(lambda: broker.dead_letters("readers"), timeout_s=30)
            broker.wait_consumed("readers", timeout_s=30)
        if reads:
            assert seen == [SMALL, SMALL]
            (dead,) = broker.dead_letters("readers")
            assert dead.body == LARGE  # nothing is lost: another limit reads the message
        heir = broker.consumer("readers", max_body_bytes=10_000)
        heir.subscribe("orders", handle)
        with heir:  # does not meet the message again
            broker.wait_consumed("readers", timeout_s=30)
        assert len(seen) == (2 if reads else 3)


def test_a_pull_consumer_meets_the_error_in_its_place_and_goes_on() -> None:
    with Broker(topics={"orders": 1}, groups=["readers"]) as broker:
        _send_all(broker)
        with PullConsumer(
            "readers", broker.namesrv_addr, topics="orders", from_where="first", max_body_bytes=10_000
        ) as consumer:
            found: list[Delivery] = []
            while len(found) < 3:
                found += consumer.poll(10)
            assert found[0].body == SMALL
            with pytest.raises(FieldError, match="max_body_bytes"):
                _ = found[1].body
            assert found[2].body == SMALL
            consumer.commit()
        assert next(iter(broker.offset("readers", "orders").values())) == 3

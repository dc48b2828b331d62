"""A producer that sets INNER_NUM or INNER_BASE hides no message of a batch queue, and verify finds no damage.

Both properties count in an inner batch only, where the store sets them. Room: tests; a broker in this process.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from running import Running, serve

import mqfast

FORGED = (
    "INNER_NUM\x019\x02",
    "INNER_NUM\x0132767\x02INNER_BASE\x011000\x02",
    "INNER_BASE\x010\x02",
    "INNER_NUM\x01-1\x02",
)


def element(body: bytes, properties: bytes) -> bytes:
    """A message of a batch body."""
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


@pytest.mark.parametrize("kind", ["BatchCQ", "SimpleCQ"])
def test_a_number_of_messages_that_a_producer_has_set_does_not_count(tmp_path: Path, kind: str) -> None:
    sent: list[bytes] = []

    async def flow(one: Running) -> None:
        made = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
        answer = await one.call(
            17, topic="T", defaultTopic="TBW102", order="false", attributes=f"+queue.type={kind}", **made
        )
        assert answer.code == 0, answer.remark
        for number, forged in enumerate(FORGED):
            for text in (forged, ""):
                sent.append(f"{number} {len(text)}".encode())
                stored = await one.send("T", sent[-1], properties=f"UNIQ_KEY\x01U{len(sent)}\x02{text}")
                assert (stored.code, stored.ext_fields["queueOffset"]) == (0, str(len(sent) - 1)), stored.remark
                sent.append(b"in a batch, %d" % len(sent))
                body = element(sent[-1], f"UNIQ_KEY\x01V{len(sent)}\x02{text}".encode())
                letters = {"a": "p", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0}
                stored = await one.call(320, body, m="true", **letters)
                assert (stored.code, stored.ext_fields["queueOffset"]) == (0, str(len(sent) - 1)), stored.remark
        assert one.context.store.max_offset("T", 0) == len(sent)

    serve(tmp_path / "store", flow)
    assert not mqfast.verify(tmp_path / "store").damages
    with mqfast.open(tmp_path / "store") as store:
        assert [message.body for message in store.get("T", 0, 0, max_count=100)] == sent
        assert store.max_offset("T", 0) == len(sent)
    with mqfast.StoreReader(tmp_path / "store") as reader:
        assert [bytes(message.body) for message in reader.scan()] == sent

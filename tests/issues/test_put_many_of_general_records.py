"""put_many of records that are not of the simple kind (record checksum, IPv6 hosts, long topics) went through the batch
path: more bodies than fit into one log file or one message were refused, and rolls came too early.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mqfast

SMALL = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 2000, "maxHashSlotNum": 16, "maxIndexNum": 100}


@pytest.mark.parametrize(
    "settings, topic",
    [
        ({"enabledAppendPropCRC": True}, "T"),
        ({"born_host": "[::1]:5"}, "T"),
        ({}, "%RETRY%" + "g" * 150),
        ({"flushDiskType": "SYNC_FLUSH", "enabledAppendPropCRC": True}, "T"),
    ],
)
def test_the_messages_are_independent(tmp_path: Path, settings: dict[str, Any], topic: str) -> None:
    with mqfast.open(tmp_path / "store", maxMessageSize=1000, **SMALL, **settings) as store:
        results = store.put_many(topic, [b"%02d" % i * 100 for i in range(90)])
        assert [result.queue_offset for result in results] == list(range(90))
        assert {result.status.name for result in results} == {"PUT_OK"}
        assert [bytes(m.body) for m in store.get(topic, 0, 0, max_count=99)] == [b"%02d" % i * 100 for i in range(90)]
        at = 0
        for result in results:  # as tight as single puts
            if result.physical_offset != at:
                assert result.physical_offset == at - at % 4096 + 4096
                assert at % 4096 + result.size + 8 > 4096
            at = result.physical_offset + result.size

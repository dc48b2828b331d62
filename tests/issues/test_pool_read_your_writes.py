"""With the pool and inline dispatch a get did not see a put that had returned: its record was not committed.

Room: tests/issues. A unit may be put with its record, so that nothing was left to dispatch. Found by tests/linearity:
"did not see offset 1446, whose put had returned".
"""

from __future__ import annotations

from pathlib import Path

import pytest

import mqfast


@pytest.mark.parametrize("count", [1, 2, 32])
def test_a_message_in_a_pool_buffer_is_seen_by_its_own_writer(tmp_path: Path, count: int) -> None:
    never = {"commitIntervalCommitLog": 600_000, "commitCommitLogThoroughInterval": 600_000}
    pool = {"transientStorePoolEnable": True, "transientStorePoolSize": 2}
    settings = {"dispatch": "inline", "mappedFileSizeCommitLog": 1 << 20}
    with mqfast.open(tmp_path / "store", **never, **pool, **settings) as store:
        for number in range(20):
            result = store.put("T", b"%d" % number)
            assert result.queue_offset == number
            first = max(0, number + 1 - count)
            bodies = store.get("T", 0, first, count).bodies()
            assert bodies == [b"%d" % n for n in range(first, number + 1)]
        store.put("T", b"one more")
        store.put("T", b"and one")
        assert store.get("T", 0, 20, 1).bodies() == [b"one more"]

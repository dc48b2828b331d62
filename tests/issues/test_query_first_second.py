"""An index entry keeps its time in whole seconds, rounded down, since the file's first entry. A query that hands its
lower bound to the index as it is loses a message stored less than a second behind it, as RocketMQ does.
"""

from __future__ import annotations

from pathlib import Path

import mqfast
from mqfast.store.base.os_api import OsApi


def test_a_message_stored_at_the_lower_bound_is_found(tmp_path: Path) -> None:
    os_api = OsApi()
    with mqfast.open(tmp_path / "store", os_api=os_api, maxHashSlotNum=64, maxIndexNum=200) as store:
        os_api.fix_clock(1_700_000_000_000)
        store.put("T", b"first", keys="a")
        os_api.fix_clock(1_700_000_000_900)
        result = store.put("T", b"second", keys="b")
        (hit,) = store.query("T", "b", begin_ms=1_700_000_000_900, end_ms=1_700_000_000_900)
        assert hit.physical_offset == result.physical_offset

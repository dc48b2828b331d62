"""A flush was refused with DiskFull while the disk was used above its watermark, as if it were a put."""

from __future__ import annotations

from pathlib import Path

import pytest

import mqfast
from mqfast.errors import DiskFull


def test_what_was_put_before_the_disk_was_full_can_be_flushed(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 1 << 16, "flushIntervalCommitLog": 60_000}
    with mqfast.open(tmp_path / "store", **settings) as store:
        result = store.put("T", b"x")
        store.retention._refuse(True)
        with pytest.raises(DiskFull):
            store.put("T", b"y")
        assert store.stats()["flushed_offset"] == 0
        assert store.flush()
        assert store.stats()["flushed_offset"] == result.physical_offset + result.size

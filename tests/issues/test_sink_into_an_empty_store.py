"""The sink takes a store that was made and closed, or killed, before its first message: it has no log directory yet.

Room: tests/issues.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import StoreLocked
from mqfast.spark.local.commit import check_target


def test_an_empty_store_is_a_store(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", config=StoreConfig(mapped_file_bytes_commit_log=1 << 16)):
        with pytest.raises(StoreLocked):
            check_target(str(tmp_path / "store"))
    check_target(str(tmp_path / "store"))

"""How much disk a store takes: small by default, RocketMQ's sizes for a broker, and what is there keeps its sizes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab, open_still

import mqfast
from mqfast.cli.main import main
from mqfast.config import StoreConfig
from mqfast.errors import ConfigError

MB = 10**6


def bytes_of(path: Path) -> tuple[int, int]:
    """(bytes of all files as their lengths say, bytes on the disk)."""
    found = [file.stat() for file in path.rglob("*") if file.is_file()]
    return sum(f.st_size for f in found), sum(f.st_blocks * 512 for f in found)


def put_one(path: Path, **settings: Any) -> None:
    with mqfast.open(path, **settings) as store:
        store.put("orders", b"body", tags="new", keys="order-7")


def sizes(path: Path, **settings: Any) -> tuple[int, int, int, int]:
    with mqfast.open(path, **settings) as store:
        c = store.config
        return (
            c.mapped_file_bytes_commit_log,
            c.mapped_file_bytes_consume_queue,
            c.max_hash_slot_num,
            c.max_index_num,
        )


SMALL = (64 << 20, 6_000_000, 75_000, 300_000)
BROKER = (1 << 30, 6_000_000, 5_000_000, 20_000_000)


def test_the_first_message_with_a_key_takes_80_mb_at_most(tmp_path: Path) -> None:
    with open_still(tmp_path) as store:
        store.put("orders", b"body", tags="new", keys="order-7")
        assert not lab(store).make_next_file()  # and no file is made ahead: the first one is nearly empty
        assert len(store.query("orders", "order-7")) == 1
        assert max(bytes_of(tmp_path)) <= 80 * MB
        assert len(list((tmp_path / "commitlog").iterdir())) == 1
    assert max(bytes_of(tmp_path)) <= 80 * MB


def test_the_next_log_file_is_made_when_half_of_the_last_one_is_full(tmp_path: Path) -> None:
    with open_still(tmp_path, mappedFileSizeCommitLog=8 << 20) as store:
        spare = []
        for _ in range(8):
            store.put("T", bytes(1 << 20))
            while lab(store).make_next_file():
                pass
            spare.append(store.stats()["spare_log_files"])
        assert spare[:7] == [0, 0, 0, 1, 1, 2, 2]
        assert store.stats()["log_files"] == 2


def test_profiles_and_what_a_new_store_gets(tmp_path: Path) -> None:
    assert sizes(tmp_path / "embedded") == SMALL
    assert sizes(tmp_path / "broker", profile="broker") == BROKER
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=a\nmaxIndexNum=1000\n")
    assert sizes(tmp_path / "conf", broker_conf=conf) == (*BROKER[:3], 1000)
    assert sizes(tmp_path / "conf", broker_conf=conf, profile="embedded") == (*SMALL[:3], 1000)
    with pytest.raises(ConfigError, match="profile: expected embedded or broker, found 'tiny'"):
        mqfast.open(tmp_path / "other", profile="tiny")


def test_a_store_keeps_its_sizes_under_the_other_profile(tmp_path: Path) -> None:
    put_one(tmp_path / "small")
    assert sizes(tmp_path / "small", profile="broker") == SMALL
    given = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 10, "maxIndexNum": 100}
    put_one(tmp_path / "own", profile="broker", **given)
    for profile in ("embedded", "broker"):
        assert sizes(tmp_path / "own", profile=profile) == (1 << 20, 6_000_000, 10, 100)
        with pytest.raises(ConfigError, match="max_index_num: the store's files have 100"):
            mqfast.open(tmp_path / "own", profile=profile, maxIndexNum=200)


def test_a_log_of_a_broker_gets_an_index_of_a_brokers_sizes(tmp_path: Path) -> None:
    """A broker of default sizes would take a small index for a damaged one of its own."""
    (tmp_path / "commitlog").mkdir()
    with (tmp_path / "commitlog" / f"{0:020d}").open("wb") as file:
        file.truncate(1 << 30)  # of holes
    assert sizes(tmp_path, message_index_enable=False) == BROKER
    assert sizes(tmp_path, message_index_enable=False, maxHashSlotNum=7) == (*BROKER[:2], 7, BROKER[3])


def test_an_index_file_without_entries_tells_its_sizes_by_its_length(tmp_path: Path) -> None:
    put_one(tmp_path)
    (index,) = (tmp_path / "index").iterdir()
    index.write_bytes(bytes(index.stat().st_size))
    assert sizes(tmp_path, profile="broker", create=False)[2:] == SMALL[2:]


def test_stat_prints_what_a_java_broker_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_one(tmp_path / "small")
    assert main(["store", "stat", str(tmp_path / "small")]) == 0
    told = capsys.readouterr().out.split("broker.conf of a Java broker")[1]
    assert "only what differs from RocketMQ's defaults" in told
    lines = [line.strip() for line in told.splitlines()[1:]]
    assert lines == ["mappedFileSizeCommitLog=67108864", "maxHashSlotNum=75000", "maxIndexNum=300000"]
    again = StoreConfig.from_broker_conf("\n".join(lines))
    assert sizes(tmp_path / "small", config=again) == SMALL
    assert StoreConfig(profile="broker").broker_conf_sizes() == {}
    assert StoreConfig(mapped_file_bytes_consume_queue=1000, profile="broker").broker_conf_sizes() == {
        "mappedFileSizeConsumeQueue": 1000
    }


def test_a_tmpfs_of_512_mb_runs_the_readmes_first_snippet(tmpfs: Callable[[str], Path]) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    snippet = readme.split("```python\n")[1].split("```")[0]
    place = tmpfs("512m")
    done = subprocess.run([sys.executable, "-c", snippet], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_three_stores_of_a_suite_fit_in_256_mb(tmpfs: Callable[[str], Path]) -> None:
    place = tmpfs("256m")
    stores = [mqfast.open(place / name) for name in "abc"]
    for store in stores:
        store.put("orders", b"body", tags="new", keys="order-7")
    for store in stores:
        assert [bytes(m.body) for m in store.query("orders", "order-7")] == [b"body"]
        assert str(store.state) == "open"
        store.close()

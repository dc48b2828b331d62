"""What is said of a Java broker's store before this broker goes on with it, and that what is said is so."""

from __future__ import annotations

import asyncio
import lzma
import shutil
from pathlib import Path

import pytest
from running import broker_config

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.config.migration_check import check_store
from mqfast.broker.server import Broker

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def texts(path: Path, **settings: str) -> list[str]:
    config = BrokerConfig()
    config.update(settings, "test")
    return [str(one) for one in check_store(path, config)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "golden-5.3.3" / "normal-clean" / "store", tmp_path / "store"))


SIZES = {
    "mappedFileSizeCommitLog": "131072", "mappedFileSizeConsumeQueue": "1000", "maxHashSlotNum": "64",
    "maxIndexNum": "200", "fileReservedTime": "72",
}  # fmt: skip


def test_what_goes_on_is_counted(store: Path) -> None:
    assert texts(store, **SIZES) == [
        "note  2 delayed messages wait, and go on here",
        "note  1 half messages were not looked at yet, and go on here",
    ]
    config = store / "config"
    (config / "delayOffset.json").write_text('{"offsetTable":{1:1000,2:1000,3:1000}}')
    assert len([one for one in texts(store, **SIZES) if "delayed" in one]) <= 1


def test_parked_messages_are_counted(tmp_path: Path) -> None:
    golden = GOLDEN / "golden-5.5.0" / "timer"
    store = Path(shutil.copytree(golden / "store", tmp_path / "store"))
    (store / "timerwheel").write_bytes(lzma.decompress((golden / "timerwheel.xz").read_bytes()))
    found = texts(store)
    assert any(one.endswith(" timed messages are parked, and go on here") for one in found)
    assert "note  config/timermetrics: counts of timed messages begin anew" in found


def test_sizes_that_differ_are_said_and_kept(store: Path) -> None:
    found = texts(store)
    assert [one.split(":")[0] for one in found if "this broker keeps the size" in one] == [
        "note  commitlog", "note  consumequeue", "note  index",
    ]  # fmt: skip
    assert "commitlog: files of 131072 bytes, where mappedFileSizeCommitLog means 1073741824" in found[1]

    async def serve() -> None:
        config = broker_config(store)
        config.store_keys = {"storePathRootDir": str(store)}
        broker = Broker(config)
        await broker.start()
        await broker.stop()

    asyncio.run(serve())
    assert {path.stat().st_size for path in (store / "commitlog").iterdir()} == {131072}
    assert texts(store, **SIZES)[-1].startswith("note  ")


def test_what_this_broker_cannot_read_stops(store: Path) -> None:
    for name in ("config/topics", "rocksdb_cq", "config/users"):
        (store / name).mkdir(parents=True)
        (store / name / "CURRENT").write_text("MANIFEST-000001\n")
        (store / name / "MANIFEST-000001").write_bytes(b"x")
        (store / name / "000003.sst").write_bytes(b"x")
    (store / "rocksdbstore").mkdir()
    for name in ("CURRENT", "MANIFEST-000005", "000004.log", "LOG"):
        (store / "rocksdbstore" / name).write_bytes(b"" if name == "000004.log" else b"x")
    (store / "dledger-n0").mkdir()
    (store / "config" / "topicQueueMapping.json").write_text(
        '{"topicQueueMappingDetailMap":{"T":{"hostedQueues":{0:[]}}}}'
    )
    (store / "config" / "consumerOrderInfo.json").write_text('{"table":{}}')
    (store / "abort").touch()
    (store / "compaction" / "compactionLog").mkdir(parents=True)
    (store / "compaction" / "compactionLog" / "0").touch()
    found = texts(store, timerRocksDBEnable="true", storePathCommitLog="/elsewhere/log", **SIZES)
    stops = sorted(one for one in found if one.startswith("STOP"))
    assert stops == [
        "STOP  config/topics/: RocksDB: this broker does not read it",
        "STOP  dledger-n0/: the log of DLedger: this broker does not read it",
        "STOP  rocksdb_cq/: RocksDB: this broker does not read it",
        "STOP  timerRocksDBEnable=true: timed messages in RocksDB: not here",
    ]
    assert found[: len(stops)] != []
    assert all(one.startswith("STOP") for one in found[: len(stops)])
    rest = "\n".join(found)
    assert "note  config/users/: RocksDB: make users and rules anew with mqadmin" in rest
    assert "note  config/topicQueueMapping.json: static topics are not served" in rest
    assert "note  abort: the last broker runs or was killed" in rest
    assert "note  storePathCommitLog: another place than the store's own: /elsewhere/log" in rest
    assert "note  compaction/compactionLog: compacted topics are not served" in rest
    assert "rocksdbstore" not in rest, "RocketMQ 5.5 makes it for everybody"
    assert "consumerOrderInfo" not in rest


def test_no_store_and_settings_that_cannot_be(tmp_path: Path) -> None:
    assert texts(tmp_path / "none") == [f"note  {tmp_path}/none: there is no store; the broker makes a new one"]
    assert texts(tmp_path, fileReservedTime="72") == [f"note  {tmp_path}: there is no log; the broker makes a new one"]
    found = texts(tmp_path, storeType="defaultRocksDB")
    assert found[0].startswith("STOP  storeType: expected default, found 'defaultRocksDB'")


def test_how_long_messages_are_kept(store: Path) -> None:
    said = "note  messages are kept for ever; a Java broker without other settings deletes files of 72 h"
    assert said in texts(store)
    assert said not in texts(store, fileReservedTime="48")


def test_it_changes_nothing(store: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    texts(store)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before

"""Names on disk, there and back, and listings of directories with strangers in them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast.errors import CorruptFile
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.paths import (
    StorePaths,
    index_name,
    list_index_files,
    list_offset_files,
    list_queues,
    offset_name,
    parse_index_name,
    parse_offset_name,
    queue_dir,
)

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Shanghai"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


@given(st.integers(0, 2**63 - 1))
def test_offset_names_round_trip(start_offset: int) -> None:
    name = offset_name(start_offset)
    assert len(name) == 20
    assert parse_offset_name(name) == start_offset


@pytest.mark.parametrize("start_offset", [-1, 2**63])
def test_offsets_beyond_64_bits_have_no_name(start_offset: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to"):
        offset_name(start_offset)


@pytest.mark.parametrize(
    "name",
    ["", "0", "0" * 19, "0" * 21, "-" + "0" * 19, "+" + "0" * 19, " " + "0" * 19, "9" * 20, "٠" * 20, "0" * 19 + "x"],
)
def test_trap_only_twenty_ascii_digits_are_an_offset(name: str) -> None:
    with pytest.raises(CorruptFile, match=r"file name is no offset, file dir/.*expected 20 digits"):
        parse_offset_name(name, "dir")


@pytest.mark.usefixtures("zone")
def test_index_names_are_local_time_and_come_back() -> None:
    # No change of the clock near these times.
    for now_ms in (0, 1_700_000_000_001, 1_720_000_000_999):
        name = index_name(now_ms)
        assert len(name) == 17
        assert parse_index_name(name) == now_ms


def test_index_name_in_a_known_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        assert index_name(1_700_000_000_007) == "20231114221320007"
    time.tzset()


@pytest.mark.parametrize(
    ("after", "following"),
    [
        ("20991231235959999", "21000101000000000"),
        ("21000228235959999", "21000301000000000"),
        ("20960228235959999", "20960229000000000"),
        ("20960229235959999", "20960301000000000"),
        ("20990101000000000", "20990101000000001"),
        ("20990331105959999", "20990331110000000"),
    ],
)
def test_index_names_grow_even_when_the_clock_goes_back(after: str, following: str) -> None:
    assert index_name(1_700_000_000_000, after) == following
    assert following > after


def test_a_strange_newest_name_does_not_stop_the_index() -> None:
    assert len(index_name(1_700_000_000_000, "zzz")) == 17


@pytest.mark.parametrize(
    "name", ["", "20231114221320", "20231314221320000", "20230229000000000", "20231114241320000", "2023111422132000x"]
)
def test_names_that_are_no_time(name: str) -> None:
    with pytest.raises(CorruptFile, match="expected yyyyMMddHHmmssSSS"):
        parse_index_name(name)


def test_listings_leave_strangers_out(tmp_path: Path) -> None:
    os_api = OsApi()
    log = tmp_path / "commitlog"
    (log / offset_name(77)).mkdir(parents=True)
    for name in (offset_name(1024), offset_name(0), "1024", ".hidden"):
        (log / name).touch()
    files, others = list_offset_files(os_api, str(log))
    assert files == [(0, str(log / offset_name(0))), (1024, str(log / offset_name(1024)))]
    assert sorted(others) == sorted([".hidden", "1024", offset_name(77)])
    assert list_offset_files(os_api, str(tmp_path / "nothing")) == ([], [])

    queues = tmp_path / "consumequeue"
    for name in ("T/0", "T/10", "T/2", "T/x", "T/007", "T/-1", "T/99999999999", "%LMQ%a/0", "empty"):
        (queues / name).mkdir(parents=True)
    (queues / "T" / "5").touch()
    (queues / "file").touch()
    assert list_queues(os_api, str(queues)) == {"%LMQ%a": [0], "T": [0, 2, 10], "empty": []}
    assert list_queues(os_api, str(tmp_path / "nothing")) == {}
    assert queue_dir(str(queues), "T", 10) == str(queues / "T" / "10")

    index = tmp_path / "index"
    (index / "20240101000000000").mkdir(parents=True)
    for name in ("20240102000000000", "20231114221320007", "junk"):
        (index / name).touch()
    assert list_index_files(os_api, str(index)) == (
        ["20231114221320007", "20240102000000000"],
        ["20240101000000000", "junk"],
    )


def test_a_real_store_has_these_places() -> None:
    os_api = OsApi()
    paths = StorePaths(str(GOLDEN / "golden-5.3.3" / "normal-clean" / "store"))
    assert len(list_offset_files(os_api, paths.commit_logs[0])[0]) > 1
    assert list_offset_files(os_api, paths.commit_logs[0])[1] == []
    assert "TopicA" in list_queues(os_api, paths.consume_queue)
    assert list_index_files(os_api, paths.index)[0]
    for path in (paths.checkpoint, paths.lock, paths.topics, paths.subscription_group, paths.consumer_offset,
                 paths.delay_offset, paths.consumer_filter):  # fmt: skip
        assert os_api.exists(path), path
    assert not os_api.exists(paths.abort)
    assert paths.offsets_file(False) == paths.consumer_offset
    assert paths.offsets_file(True).endswith("config/lmqConsumerOffset.json")


def test_log_directories_may_be_elsewhere() -> None:
    paths = StorePaths("/s", ["/a", "/b"], ["/c"])
    assert (paths.commit_logs, paths.read_only_commit_logs) == (("/a", "/b"), ("/c",))
    assert StorePaths("/s").commit_logs == ("/s/commitlog",)


def test_the_last_index_name_that_there_can_be(zone: str) -> None:
    """Behind it no name is later: the fields start again, and nothing is read beyond them."""
    assert index_name(0, "99991231235959999") == "00000101000000000"
    assert index_name(0, "99991231235959998") == "99991231235959999"

"""Settings: names, ranges, contradictions, and broker.conf as a Java broker would read it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast.config import DOCUMENTED_FIELDS, FIELD_OF_PROPERTY, PROPERTY_OF_FIELD, StoreConfig, parse_properties
from mqfast.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden"


class ReadDoor:
    """The one door method that config uses."""

    def read_file(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        data = Path(path).read_bytes()
        assert len(data) <= max_bytes
        return data


def test_every_setting_is_documented_and_the_names_are_one_to_one() -> None:
    settings = StoreConfig().describe()
    assert tuple(s.field for s in settings) == DOCUMENTED_FIELDS
    assert all(s.doc.endswith(".") for s in settings)
    assert len(set(PROPERTY_OF_FIELD.values())) == len(PROPERTY_OF_FIELD)
    assert {FIELD_OF_PROPERTY[p]: p for p in PROPERTY_OF_FIELD.values()} == PROPERTY_OF_FIELD
    notes = {"explicit", "without_effect", "unknown", "warnings"}
    assert {f.name for f in dataclasses.fields(StoreConfig)} == set(DOCUMENTED_FIELDS) | notes


@pytest.mark.parametrize("case", sorted(p.parent.name for p in GOLDEN.glob("golden-5.3.3/*/expected.json")))
def test_settings_of_golden_stores_are_accepted(case: str) -> None:
    settings = json.loads((GOLDEN / "golden-5.3.3" / case / "expected.json").read_text())["settings"]
    config = StoreConfig.from_kwargs(**settings)
    assert config.explicit == {FIELD_OF_PROPERTY[name] for name in settings}
    assert config.mapped_file_bytes_commit_log == settings["mappedFileSizeCommitLog"]
    assert config.mapped_file_bytes_consume_queue == 1000


def test_both_spellings_are_one_setting() -> None:
    ours = StoreConfig.from_kwargs(flush_disk_type="SYNC_FLUSH", max_message_bytes=1000)
    theirs = StoreConfig.from_kwargs(flushDiskType="SYNC_FLUSH", maxMessageSize=1000)
    assert ours == theirs
    assert ours.explicit == theirs.explicit == {"flush_disk_type", "max_message_bytes"}
    assert ours.sync_flush
    with pytest.raises(ConfigError, match="flush_disk_type and flushDiskType: expected one spelling, found both"):
        StoreConfig.from_kwargs(flush_disk_type="SYNC_FLUSH", flushDiskType="SYNC_FLUSH")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flush_disk_typ", "did you mean flush_disk_type"),
        ("mappedFileSizeCommitlog", "did you mean mappedFileSizeCommitLog"),
        ("explicit", "expected a known setting"),
        ("warnings", "expected a known setting"),
        ("haListenPort", "one that only RocketMQ uses"),
        ("qqqqqq", "unknown one$"),
    ],
)
def test_unknown_keywords_are_errors(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StoreConfig.from_kwargs(**{name: 1})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_index_num": "20"}, "max_index_num: expected int, found str '20'"),
        ({"max_index_num": True}, "expected int, found bool True"),
        ({"max_index_num": None}, "expected int, found NoneType"),
        ({"message_index_enable": 1}, "expected bool, found int 1"),
        ({"sync_flush_timeout_ms": 0}, "sync_flush_timeout_ms: expected 1 to 2147483647 ms, found 0"),
        ({"mapped_file_bytes_commit_log": 2**31}, "found 2147483648"),
        ({"flush_disk_type": "SYNC"}, "expected ASYNC_FLUSH or SYNC_FLUSH, found 'SYNC'"),
        ({"storeType": "defaultRocksDB"}, "expected default, found 'defaultRocksDB'"),
        ({"disk_max_used_space_percent": 96}, "expected 10 to 95 %, found 96"),
        ({"store_host": "localhost:1"}, "store_host: host: expected"),
        ({"delete_when": "24"}, "expected hours 00 to 23"),
        ({"delete_when": ""}, "expected hours"),
        ({"delete_when": "04; 05"}, "expected hours 00 to 23 separated by semicolons alone"),
        ({"delete_when": "04;24"}, "expected hours 00 to 23, found '04;24'"),
        ({"message_delay_level": "1s  5s"}, "message_delay_level: expected numbers"),
        ({"max_hash_slot_num": 2**30}, "expected an index file of at most"),
    ],
)
def test_wrong_values_are_errors(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StoreConfig.from_kwargs(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"force_verify_prop_crc": True},
        {"retention_bytes": 100 << 20, "mapped_file_bytes_commit_log": 64 << 20},
        {"store_host": "1.2.3.4:5", "listenPort": 6},
    ],
)
def test_contradictions_are_errors(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        StoreConfig.from_kwargs(**settings)


def test_config_is_frozen_and_replace_checks_again() -> None:
    config = StoreConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_index_num = 5  # type: ignore[misc]
    with pytest.raises(ConfigError):
        dataclasses.replace(config, max_index_num=0)


def test_trap_queue_size_is_rounded_up_and_batch_queue_size_is_not() -> None:
    config = StoreConfig.from_kwargs(mappedFileSizeConsumeQueue=1001, mapperFileSizeBatchConsumeQueue=231)
    assert config.mapped_file_bytes_consume_queue == 1020
    assert config.mapped_file_bytes_batch_consume_queue == 231


def test_derived_values() -> None:
    config = StoreConfig.from_kwargs(
        deleteWhen="04;16;", messageDelayLevel="1s 2m 3h 4d", storePathCommitLog=" /a/log,/b/log,, ", brokerIP1="::1"
    )
    assert config.delete_hours == {4, 16}
    assert config.delay_levels_ms == (1000, 120_000, 10_800_000, 345_600_000)
    assert config.commit_log_dirs == ("/a/log", "/b/log")
    assert config.store_host == "[::1]:10911"
    assert len(StoreConfig().delay_levels_ms) == 18


def test_tiny() -> None:
    config = StoreConfig.tiny(flush_disk_type="SYNC_FLUSH", max_index_num=5)
    assert (config.mapped_file_bytes_commit_log, config.mapped_file_bytes_consume_queue) == (65536, 4000)
    assert (config.max_hash_slot_num, config.max_index_num) == (8, 5)
    assert config.explicit == {"flush_disk_type", "max_index_num"}
    with pytest.raises(ConfigError):
        StoreConfig.tiny(nonsense=1)


CONF = r"""
# a comment \
! another
brokerClusterName = DefaultCluster
brokerIP1=10.0.0.7
listenPort: 10921
deleteWhen 04;05
mappedFileSizeCommitLog=1048576
  flushDiskType \
     = \
     SYNC_FLUSH
storePathRootDir=/data/caf\u4e00\\x
transientStorePoolEnable=TRUE
diskMaxUsedSpaceRatio=99
haListenPort=10912
fileReservdTime=48
"""


def test_broker_conf() -> None:
    config = StoreConfig.from_broker_conf(CONF, fileReservedTime=24)
    assert config.store_host == "10.0.0.7:10921"
    assert config.delete_hours == {4, 5}
    assert config.mapped_file_bytes_commit_log == 1048576
    assert config.sync_flush
    assert config.transient_store_pool_enable
    assert config.store_path_root_dir == "/data/caf一\\x"
    assert config.disk_max_used_space_percent == 95
    assert config.file_reserved_time_hours == 24
    assert config.without_effect == ("brokerClusterName", "haListenPort")
    assert config.unknown == ("fileReservdTime",)
    assert config.profile == "broker"
    assert config.max_hash_slot_num == 5_000_000
    assert len(config.warnings) == 2
    assert "counts as 95" in config.warnings[0]
    assert "did you mean fileReservedTime" in config.warnings[1]
    assert "max_index_num" not in config.explicit
    assert {"store_host", "file_reserved_time_hours"} <= config.explicit


def test_a_broker_conf_is_read_as_java_reads_it_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes("# 注释\nstorePathRootDir=/data/café\r\nmaxIndexNum=7".encode("latin-1", "replace"))
    config = StoreConfig.from_broker_conf(str(path), os_api=ReadDoor())
    assert (config.store_path_root_dir, config.max_index_num) == ("/data/café", 7)
    path.write_bytes("# 注释\nstorePathRootDir=/data/café\nmaxIndexNum=7".encode())
    config = StoreConfig.from_broker_conf(str(path), os_api=ReadDoor())
    assert (config.store_path_root_dir, config.max_index_num) == ("/data/cafÃ©", 7)
    assert any("ISO-8859-1; write other characters as \\uXXXX" in text for text in config.warnings)
    path.write_bytes("\ufeffmaxIndexNum=7\nmaxHashSlotNum=8".encode())
    config = StoreConfig.from_broker_conf(str(path), os_api=ReadDoor())
    assert (config.max_index_num, config.max_hash_slot_num) == (20_000_000, 8)
    assert any("byte order mark" in text for text in config.warnings)


@pytest.mark.parametrize(
    ("text", "field", "value", "message"),
    [
        ("transientStorePoolEnable=yes", "transient_store_pool_enable", False, "expected true or false, found 'yes'"),
        ("checkCRCOnRecover=true ", "check_crc_on_recover", False, "expected true or false, found 'true '"),
        ("checkCRCOnRecover=", "check_crc_on_recover", False, "found ''; it counts as false, as in Java"),
        ("checkCRCOnRecover=TrUe", "check_crc_on_recover", True, None),
        ("maxIndexNum=1k", "max_index_num", 20_000_000, "found '1k'; the default counts, as in Java"),
        ("maxIndexNum=0x10", "max_index_num", 20_000_000, "expected a whole number of 32 bits"),
        ("maxIndexNum=1e3", "max_index_num", 20_000_000, "the default counts"),
        ("maxIndexNum=12 ", "max_index_num", 20_000_000, "without blanks, found '12 '"),
        ("maxIndexNum=99999999999", "max_index_num", 20_000_000, "the default counts"),
        ("maxIndexNum=" + "9" * 5000, "max_index_num", 20_000_000, "the default counts"),
        ("maxIndexNum=+0012", "max_index_num", 12, None),
        ("maxIndexNum=١٢", "max_index_num", 12, None),
        ("osPageCacheBusyTimeOutMills=2147483648", "os_page_cache_busy_timeout_ms", 2**31, None),
        ("flushDiskType=sync_flush", "flush_disk_type", "ASYNC_FLUSH", "the default counts, as in Java"),
        ("flushDiskType=", "flush_disk_type", "ASYNC_FLUSH", "found ''"),
        ("flushDiskType=SYNC_FLUSH \t", "flush_disk_type", "SYNC_FLUSH", None),
        ("brokerRole=slave", "broker_role", "ASYNC_MASTER", "expected ASYNC_MASTER or SYNC_MASTER or SLAVE"),
        ("storeType=other", "store_type", "default", "counts as default"),
        ("listenPort=0x10", "store_host", "127.0.0.1:10911", "10911 counts, as in Java"),
        ("storePathCommitLog= ", "store_path_commit_log", None, "expected a value, found none"),
        ("storePathCommitLog=/a/log,", "store_path_commit_log", "/a/log,", None),
        ("deleteWhen=04;", "delete_when", "04;", None),
        ("deleteWhen=24", "delete_when", "24", None),
        ("messageDelayLevel=1s 5s \t", "message_delay_level", "1s 5s", None),
        (
            "mapedFileSizeCommitLog=1024\nmappedFileSizeCommitLog=2048",
            "mapped_file_bytes_commit_log",
            2048,
            "mapedFileSizeCommitLog: no effect, as in RocketMQ since 4.5; the name is mappedFileSizeCommitLog",
        ),
        ("mapedFileSizeConsumeQueue=300000", "mapped_file_bytes_consume_queue", 6_000_000, "no effect, as in RocketMQ"),
        ("brokerIP1=localhost\nlistenPort=7", "store_host", "127.0.0.1:7", None),
        ("brokerIP1=no.such.host.invalid", "store_host", "127.0.0.1:10911", "a name with one, found 'no.such.host"),
    ],
)
def test_odd_values_mean_what_java_takes_them_for(text: str, field: str, value: object, message: str | None) -> None:
    config = StoreConfig.from_broker_conf(text)
    assert getattr(config, field) == value
    assert [message in warning for warning in config.warnings] == [True] if message else config.warnings == ()


def test_hours_that_never_come_and_separators_at_the_end() -> None:
    assert StoreConfig.from_broker_conf("deleteWhen=24").delete_hours == set()
    assert StoreConfig.from_broker_conf("deleteWhen=;").delete_hours == set()
    assert StoreConfig.from_broker_conf("deleteWhen=04;17;99;;").delete_hours == {4, 17}
    assert StoreConfig.from_broker_conf("storePathCommitLog=/a/log,").commit_log_dirs == ("/a/log",)
    assert StoreConfig.from_broker_conf("storePathCommitLog=/a, /b").commit_log_dirs == ("/a", " /b")
    assert StoreConfig.from_broker_conf("messageDelayLevel=+1s -2m").delay_levels_ms == (1000, -120_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (r"storePathRootDir=\u12", "expected four hex digits"),
        ("storeType=defaultRocksDB", "expected default"),
        ("storeType=DEFAULTROCKSDB", "expected default"),
        ("enableDLegerCommitLog=true", "enableDLegerCommitLog: expected false, found true"),
        ("messageDelayLevel=1s  5s", "between single blanks, found ''"),
        ("deleteWhen=04;;05", "RocketMQ fails at each clean-up and deletes nothing"),
        ("deleteWhen=04; 05", "RocketMQ fails at each clean-up"),
        ("deleteWhen=", "RocketMQ fails at each clean-up"),
        ("maxIndexNum=0", "max_index_num: expected 2 to 2147483647 entries, found 0"),
        ("listenPort=99999", "store_host"),
    ],
)
def test_settings_that_no_broker_can_use_are_errors(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StoreConfig.from_broker_conf(text)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=b", {"a": "b"}),
        ("a = b = c ", {"a": "b = c "}),
        ("a:b\na  c", {"a": "c"}),
        ("a", {"a": ""}),
        (r"a\=b\:c\ d=e", {"a=b:c d": "e"}),
        ("a=1\\\n   2\\\n#3", {"a": "12#3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("#x\\\na=1", {"a": "1"}),
        (r"a=\ud83d\ude00\t\q", {"a": "😀\tq"}),
        ("\f a=1\r\r\nb=2", {"a": "1", "b": "2"}),
        ("=v", {"": "v"}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_java_property_syntax(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


def _escape(text: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in memoryview(text.encode("utf-16-le")).cast("H"))


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_escaped_pairs_come_back(pairs: dict[str, str]) -> None:
    text = "\n".join(f"{_escape(key)}={_escape(value)}" for key, value in pairs.items())
    assert parse_properties(text) == pairs


@given(st.text(st.sampled_from("ab=: \t\n\r\\#!u0")))
def test_any_text_parses_or_is_a_config_error(text: str) -> None:
    try:
        pairs = parse_properties(text)
    except ConfigError:
        return
    assert all(isinstance(value, str) for value in pairs.values())

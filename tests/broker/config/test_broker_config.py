"""Settings of a broker: where they come from, which one counts, what is said of those without effect and of typos."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.config.rocketmq_keys import ROCKETMQ_KEYS
from mqfast.config import FIELD_OF_PROPERTY
from mqfast.errors import ConfigError
from mqfast.retention_rules import RetentionRules

ROOT = Path(__file__).resolve().parents[3]
CONF = b"""# distribution/conf/broker.conf
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""


def test_the_file_that_rocketmq_ships_needs_no_word(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(CONF)
    config = BrokerConfig()
    config.read_file(path)
    config.check()
    assert (config.warnings, config.unknown) == ([], [])
    assert (config["brokerName"], config["brokerClusterName"], config["brokerId"]) == ("broker-a", "DefaultCluster", 0)
    store = config.store_config()
    assert (store.profile, store.file_reserved_time_hours, store.delete_when) == ("broker", 48, "04")
    assert store.mapped_file_bytes_commit_log == 1 << 30


def test_every_key_of_rocketmq_is_taken() -> None:
    config = BrokerConfig()
    samples = {"boolean": "true", "int": "1", "long": "1", "double": "0.5", "text": "x"}
    pairs = {name: key.default or samples[key.type] for name, key in ROCKETMQ_KEYS.items()}
    config.update(pairs, "test")
    assert config.unknown == []
    assert len(ROCKETMQ_KEYS) == 522
    assert len(config.warnings) == 1
    assert config.warnings[0].startswith("test: without effect here: accessMessageInMemoryHotRatio, ")


def test_defaults_are_rocketmqs_but_for_those_that_the_page_names() -> None:
    config = BrokerConfig()
    other = {
        name: (str(config[name]).lower() if isinstance(config[name], bool) else str(config[name]), key.default)
        for name, key in ROCKETMQ_KEYS.items()
        if name not in FIELD_OF_PROPERTY and config.acts(name)
    }
    found = {name: pair for name, pair in other.items() if pair[0] != pair[1]}
    assert found == {
        "bindAddress": ("127.0.0.1", "0.0.0.0"),
        "brokerName": (config["brokerName"], ""),  # that of the machine in both
        "listenPort": ("10911", "6888"),  # as RocketMQ's BrokerStartup has it
        "enableSingleTopicRegister": ("true", "false"),
        "serverSelectorThreads": (str(config["serverSelectorThreads"]), "3"),  # 0, or as a run of the tests asks for
        "timerEnableRetryUntilSuccess": ("true", "false"),  # RocketMQ drops a timed message after three tries
    }
    assert config["brokerName"]


def test_what_is_written_nearer_to_the_start_counts(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("namesrvAddr=file:1\nlistenPort=1\nbrokerName=file\nregionId=file\nflushDiskType=ASYNC_FLUSH")
    config = BrokerConfig()
    environment = {
        "NAMESRV_ADDR": "environment:1", "ROCKETMQ_HOME": "/opt/rocketmq", "ROCKETMQ_LISTEN_PORT": "2",
        "ROCKETMQ_brokerName": "environment", "ROCKETMQ_FLUSHDISKTYPE": "SYNC_FLUSH", "ROCKETMQ_ZONE": "z",
        "ROCKETMQ_TLS_SERVER_MODE": "enforcing", "HOME": "/root", "ROCKETMQ_BROKER_NAM": "typo",
    }  # fmt: skip
    config.update_defaults(environment)
    assert config.name_servers == ["environment:1"]
    config.read_file(path)
    config.update_environment(environment)
    config.update({"brokerName": "line"}, "command line")
    assert config.name_servers == ["file:1"]
    assert [config[name] for name in ("listenPort", "brokerName", "regionId", "rocketmqHome", "tls.server.mode")] == [
        2, "line", "file", "/opt/rocketmq", "enforcing",
    ]  # fmt: skip
    assert config.store_config().flush_disk_type == "SYNC_FLUSH"
    assert config.unknown == ["BROKER_NAM"]


def test_typos_get_near_names_of_broker_and_store() -> None:
    config = BrokerConfig()
    config.update({"brokerIp1": "x", "fileReservdTime": "1", "zzz": "1", "pullMessageThreadPoolNums": "9"}, "test")
    assert config.unknown == ["brokerIp1", "fileReservdTime", "zzz"]
    text = "\n".join(config.warnings)
    assert "test: without effect here: pullMessageThreadPoolNums\n" in text
    assert re.search("found brokerIp1; did you mean brokerIP1 or ", text)
    assert re.search(r"found fileReservdTime; did you mean fileReservedTime\?", text)
    assert text.endswith("found zzz")


@pytest.mark.parametrize(
    "pairs, says",
    [
        ({"listenPort": "70000"}, "listenPort: expected a whole number from 0 to 65535, found '70000'"),
        ({"autoCreateTopicEnable": "yes"}, "autoCreateTopicEnable: expected true or false, found 'yes'"),
        ({"brokerRole": "SLAVE"}, "brokerId: expected at least 1 for a slave, found 0"),
        ({"enableControllerMode": "true"}, "enableControllerMode: expected none"),
        ({"messageStorePlugIn": "org.x.Tiered"}, "messageStorePlugIn: expected none"),
        ({"brokerName": " "}, "brokerName: expected a name"),
        ({"enableDLegerCommitLog": "true"}, "enableDLegerCommitLog: expected false"),
        ({"storeType": "defaultRocksDB"}, "storeType: expected default"),
    ],
)
def test_what_would_be_another_broker_is_an_error(pairs: dict[str, str], says: str) -> None:
    config = BrokerConfig()
    with pytest.raises(ConfigError, match=re.escape(says)):
        config.update(pairs, "test")
        config.check()
        config.store_config()


def test_the_text_has_all_values_and_no_secret() -> None:
    config = BrokerConfig()
    secrets = {
        "tls.server.keyPassword": "secret-1", "tls.client.keyPassword": "secret-2",
        "initAuthenticationUser": '{"username":"u","password":"secret-3"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"u","secretKey":"secret-4"}',
        "socksProxyConfig": '{"*":{"password":"secret-5"}}', "metricsGrpcExporterHeader": "token:secret-6",
    }  # fmt: skip
    config.update({**secrets, "fileReservedTime": "9", "brokerName": "b", "storePathRootDir": "/s"}, "test")
    text = config.text()
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert "secret" not in text.replace("secretKey", "")
    assert {**ROCKETMQ_KEYS}.keys() - lines.keys() - secrets.keys() == UNSHOWN
    assert lines["fileReservedTime"] == "9"
    assert (lines["brokerName"], lines["storePathRootDir"], lines["mappedFileSizeCommitLog"]) == (
        "b",
        "/s",
        "1073741824",
    )
    assert list(lines) == sorted(lines)


# Of the store: not given, so that the store decides.
UNSHOWN = {"readOnlyCommitLogStorePaths", "enableDLegerCommitLog"}


def test_tls_settings_come_from_their_file_and_go_before_it(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text("tls.test.mode.enable=false\ntls.server.certPath=/file/cert\ntls.server.keyPath=/file/key\n"
                    "tls.server.mode=enforcing\ntls.client.authServer=true\n")  # fmt: skip
    config = BrokerConfig()
    assert config.tls("server") == {}
    config.update({"tls.config.file": str(path), "tls.server.keyPath": "/own/key"}, "test")
    assert config.tls("server") == {
        "tls.server.certPath": "/file/cert", "tls.server.keyPath": "/own/key", "tls.server.mode": "enforcing",
    }  # fmt: skip
    assert config.tls("client") == {"tls.client.authServer": "true"}
    config.update({"tls.config.file": "/no/such/file"}, "test")
    with pytest.raises(OSError):
        config.tls("server")


def test_every_key_with_effect_is_read_and_no_other() -> None:
    """A key that nobody reads has no effect, whatever the table says; one without effect is text, whatever its kind."""
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for room in ("broker", "schedule", "cli", "remoting")
        for path in (ROOT / "mqfast" / room).rglob("*.py")
    }
    tables = ("rocketmq_keys.py", "settings_requests.py")
    text = "".join(code for name, code in sources.items() if not name.endswith(tables))
    config = BrokerConfig()
    named = set(re.findall(r'"([\w.]+)"', text.replace('": Setting(', "")))
    acting = {name for name in config.names() if config.acts(name)}
    assert sorted(acting - named) == []
    read = set(re.findall(r'config\["([\w.]+)"\]', text))
    assert sorted(name for name in read if name in config.names() and not config.acts(name)) == []


def test_nothing_is_deleted_unless_a_file_or_a_setting_says_so(tmp_path: Path) -> None:
    def rules(*lines: str, conf: bool = False) -> tuple[bool, bool]:
        config = BrokerConfig()
        if conf:
            file = tmp_path / "broker.conf"
            file.write_text("brokerName=a\n")
            config.read_file(file)
        config.update(dict(line.split("=") for line in lines), "test")
        store = config.store_config()
        return store.retention_rules.rocketmq, store.retention_rules == RetentionRules()

    assert rules() == (False, True)
    assert rules("mappedFileSizeCommitLog=1048576", "flushDiskType=SYNC_FLUSH") == (False, True)
    assert rules("fileReservedTime=48") == (True, False)
    assert rules("deleteWhen=04") == (True, False)
    assert rules(conf=True) == (True, False)


def test_variables_of_images_and_scripts_are_no_settings() -> None:
    config = BrokerConfig()
    names = ("VERSION", "ACCESS_KEY", "SECRET_KEY", "ZONE", "PORT_9876_TCP", "HEAP", "IMAGE", "BUILD_DATE", "CONF_DIR")
    config.update_environment({f"ROCKETMQ_{name}": "1" for name in names})
    assert (config.warnings, config.unknown) == ([], [])
    config.update_environment({"ROCKETMQ_LISTN_PORT": "1", "ROCKETMQ_FLUSHDISKTYP": "x"})
    assert [line.partition("found ")[2] for line in config.warnings] == [
        "ROCKETMQ_LISTN_PORT; did you mean listenPort or haListenPort?",
        "ROCKETMQ_FLUSHDISKTYP; did you mean flushDiskType?",
    ]

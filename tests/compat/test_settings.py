"""A broker.conf means here what it means to a Java broker: every property that both know, with odd values.

Room: tests/compat. The loader and the setters that a broker's start uses are asked; ``broker_conf.py`` and the table of
``config.py`` answer.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from java_oracle import JavaOracle

from mqfast.config import FIELD_OF_PROPERTY, PROPERTY_OF_FIELD, StoreConfig
from mqfast.errors import ConfigError
from mqfast.settings.rocketmq_names import KNOWN_TO_ROCKETMQ
from mqfast.util.property_file import parse_properties

ODD = [
    "",
    " ",
    "0",
    "1",
    "7 ",
    " 12 ",
    "12\t",
    "+5",
    "-1",
    "-5",
    "--5",
    "+",
    "0x10",
    "1e3",
    "1_000",
    "1,000",
    "1.0",
    "010",
    "0000000000000000000000000012",
    "2147483647",
    "2147483648",
    "-2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "99999999999999999999",
    "\\u0661\\u0662",
    "\\uff11",
    "\\ud835\\udfcf",
    "1\\u00a0",
    "TRUE",
    "True",
    "true ",
    " true",
    "yes",
    "on",
    "1k",
    "null",
    "SYNC_FLUSH",
    "SYNC_FLUSH ",
    "sync_flush",
    "SLAVE",
    "Slave",
    "SYNC_MASTER",
    "default",
    "Default",
    "04",
    "04;",
    "04;;",
    ";04",
    "04;05",
    "04; 05",
    "04,05",
    "24",
    "1s 5s",
    "1s  5s",
    "1s 5s ",
    "/a/log,",
    "/a/log,,",
    "/a, /b",
    ",/a",
    "\\u4e00",
    "caf\xe9",
]
# Java's getters of these leave out what the services make of them (10..95, 30..85, 35..90).
CLAMPED = {"diskSpaceCleanForciblyRatio": (30, 85), "diskSpaceWarningLevelRatio": (35, 90)}
HOSTS = ("brokerIP1", "listenPort")
PLACES = ("store_path_root_dir", "store_path_commit_log", "read_only_commit_log_store_paths")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of warnings are expected."""
    caplog.set_level(logging.ERROR, "mqfast.config")


@pytest.fixture
def oracle(each_oracle: JavaOracle) -> JavaOracle:
    """Every release, in the JVM that the whole run shares."""
    return each_oracle


def java_values(oracle: JavaOracle, properties: list[str]) -> dict[tuple[str, str], Any]:
    """(property, text of its value) -> what the getter says then; one file a text, for all properties."""
    files = ["\n".join(f"{name}={value}" for name in properties).encode("latin-1") for value in ODD]
    answers = oracle.settings(files)
    return {
        (name, value): answer["values"][name]
        for value, answer in zip(ODD, answers, strict=True)
        for name in properties
        if not (oracle.release.startswith("4") and value.rstrip(" \t") != value)  # it did not trim texts yet
    }


def test_every_property_takes_every_value_as_java_does(oracle: JavaOracle) -> None:
    (nothing,) = oracle.settings([b""])
    known = [name for name in PROPERTY_OF_FIELD.values() if name in nothing["values"]]
    assert len(known) > (50 if oracle.release.startswith("5") else 40)
    wrong: list[str] = []
    for (name, text), theirs in java_values(oracle, known).items():
        field = FIELD_OF_PROPERTY[name]
        try:
            config = StoreConfig.from_broker_conf(f"{name}={text}")
        except ConfigError:
            # A value that Java takes and this engine cannot work with is refused, and never taken for another one.
            with pytest.raises(ConfigError):
                StoreConfig(profile="broker", **{field: theirs})
            continue
        ours, expected = getattr(config, field), theirs
        if name in CLAMPED:
            low, high = CLAMPED[name]
            expected = min(max(theirs, low), high)
        elif field == "store_type":
            expected = "default"  # whatever is no RocksDB
        elif field in PLACES and ours is None:
            continue  # Java's default is a place in the home directory; of an empty value it would be /
        if ours != expected:
            wrong.append(f"{name}={text!r}: Java takes {theirs!r}, found {ours!r}")
        if field not in config.explicit and not config.warnings:
            wrong.append(f"{name}={text!r} does not count and no warning says so")
    assert not wrong, "\n".join(wrong)


def test_defaults_of_the_broker_profile_are_javas(oracle: JavaOracle) -> None:
    if oracle.release.startswith("4"):
        pytest.skip("defaults are those of the newest release")
    (nothing,) = oracle.settings([b""])
    config = StoreConfig(profile="broker")
    different = {
        name: (getattr(config, field), nothing["values"][name])
        for field, name in PROPERTY_OF_FIELD.items()
        if name in nothing["values"] and getattr(config, field) != nothing["values"][name]
    }
    assert {FIELD_OF_PROPERTY[name] for name in different} <= set(PLACES), different


def test_lines_are_javas(oracle: JavaOracle) -> None:
    files = [
        rb"a=b", rb"a = b = c ", b"a:b\na  c", b"a", rb"a\=b\:c\ d=e", b"a=1\\\n   2\\\n#3", b"a=1\\\\\nb=2",
        b"#x\\\na=1", rb"a=\ud83d\ude00\t\q", b"\f a=1\r\r\nb=2", b"=v", b"a=1\\", b"a\xe9=\xc3\xa9",
        b"\xef\xbb\xbfa=1",
        rb"a=\u12", rb"a=\uuuu", b"!a\n#b\n c:d", b"a=1\na=2", b"a\\\n  b=1", b"k \t=\f v\t", b"a==b", b"a=\\\n\\\nb",
        b"a\0b=c\0",
    ]  # fmt: skip
    for data, answer in zip(files, oracle.settings(files), strict=True):
        if "refused" in answer:
            with pytest.raises(ConfigError):
                parse_properties(data.decode("latin-1"))
        else:
            assert parse_properties(data.decode("latin-1")) == answer["pairs"], data


def test_every_name_is_known(oracle: JavaOracle) -> None:
    """Every property of the broker's three classes is a setting, or is listed as one without effect here."""
    (nothing,) = oracle.settings([b""])
    names = set(nothing["values"])
    setters = {name for name in names if name in KNOWN_TO_ROCKETMQ or name in FIELD_OF_PROPERTY or name in HOSTS}
    text = "\n".join(f"{name}=1" for name in sorted(setters - set(FIELD_OF_PROPERTY)))
    assert StoreConfig.from_broker_conf(text, store_host="1.2.3.4:5").unknown == ()
    # What is left has a getter and no setter.
    config = StoreConfig.from_broker_conf("\n".join(f"{name}=1" for name in sorted(names - setters)))
    answers = oracle.settings(f"{name}={value}".encode() for name in config.unknown for value in ("false", "true", "7"))
    for number, name in enumerate(config.unknown):
        found = {repr(answer["values"][name]) for answer in answers[number * 3 : number * 3 + 3]}
        assert len(found) == 1, f"{name} can be set, and is not known"


def test_hours_are_read_when_java_can_read_them(oracle: JavaOracle) -> None:
    for text in ("04", "04;", ";", "24", "04;99", "+4", "04;-1"):
        (answer,) = oracle.settings([f"deleteWhen={text}".encode()])
        assert answer["deleteWhen"] == "read"
        StoreConfig.from_broker_conf(f"deleteWhen={text}")
    for text in (";04", "x", "04,05", " ", "0x4", "4.0"):
        (answer,) = oracle.settings([f"deleteWhen={text}".encode()])
        assert answer["deleteWhen"] == "refused"
        with pytest.raises(ConfigError):
            StoreConfig.from_broker_conf(f"deleteWhen={text}")

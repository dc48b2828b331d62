"""The declaration of settings: kinds, ranges, choices, hints, and agreement of declarations of one setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.config import DOCUMENTED_FIELDS, StoreConfig
from mqfast.errors import ClientConfigError, ConfigError
from mqfast.ha.settings import HaSettings
from mqfast.remoting.settings import RemotingSettings
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.settings.declaration import SettingSpec, check_setting, setting, specs_of

I32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Example:
    count: int = setting(5, "theCount", "messages", "Count of messages.", low=1, high=10)
    mode: str = setting("fast", None, "name", "Speed.", choices=("fast", "slow"))
    limit: int | None = setting(None, None, "bytes", "Limit.")
    size: int = setting(4, "theSize", "bytes", "Size.", broker_default=8)
    percent: int = setting(50, "thePercent", "%", "Share.", clamp=(10, 95))
    other: int = 3


def test_fields_of_a_dataclass_are_declared_with_unit_range_and_text() -> None:
    specs = specs_of(Example)
    assert list(specs) == ["count", "mode", "limit", "size", "percent"]
    assert specs["count"] == SettingSpec(
        "int", 1, 10, "messages", default=5, rocketmq_name="theCount", broker_default=5, doc="Count of messages."
    )
    assert (specs["limit"].kind, specs["limit"].optional, specs["limit"].low) == ("int", True, 0)
    assert (specs["size"].default, specs["size"].broker_default, Example().size) == (4, 8, None)
    assert (specs["percent"].limits, specs["size"].limits) == ((10, 95), (0, I32_MAX))


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("count", 11, "count: expected 1 to 10 messages, found 11"),
        ("count", True, "count: expected int of messages, found True"),
        ("count", "5", "count: expected int of messages, found '5'"),
        ("count", None, "count: expected int of messages, found None"),
        ("mode", "slwo", r"mode: expected fast or slow, found 'slwo'; did you mean slow\?"),
        ("percent", 96, "percent: expected 10 to 95 %, found 96"),
        ("limit", -1, f"limit: expected 0 to {I32_MAX} bytes, found -1"),
    ],
)
def test_a_wrong_value_is_an_error_with_the_expected_values(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        check_setting(name, value, specs_of(Example)[name])


def test_the_caller_chooses_the_error_and_its_hints() -> None:
    spec = specs_of(Example)["mode"]
    with pytest.raises(ClientConfigError, match=r"mode: expected fast or slow, found 'slwo'$"):
        check_setting("mode", "slwo", spec, error=ClientConfigError, hints=False)
    with pytest.raises(ConfigError, match=r"mode: expected str, found int 5$"):
        check_setting("mode", 5, spec, hints=False)


@pytest.mark.parametrize(
    "spec, value, is_right",
    [
        (SettingSpec.of(True), False, True),
        (SettingSpec.of(True), 1, False),
        (SettingSpec.of(1.5), 2, True),
        (SettingSpec.of(1.5), float("nan"), False),
        (SettingSpec.of(1), 1.0, False),
        (SettingSpec.of(1, high=2**63 - 1), 2**62, True),
        (SettingSpec.of(1), 2**31, False),
        (SettingSpec.of("a"), "", True),
        (SettingSpec("str", optional=True), None, True),
    ],
)
def test_the_kind_is_that_of_the_default(spec: SettingSpec, value: object, is_right: bool) -> None:
    try:
        check_setting("x", value, spec)
    except ConfigError:
        assert not is_right
    else:
        assert is_right


def test_every_setting_of_a_store_has_a_text() -> None:
    specs = specs_of(StoreConfig)
    assert tuple(specs) == DOCUMENTED_FIELDS
    assert [name for name, spec in specs.items() if not spec.doc] == []


@pytest.mark.parametrize("declared", [HaSettings, RemotingSettings, TimerSettings])
def test_declarations_of_a_part_agree_with_the_settings_of_the_broker(declared: Any) -> None:
    """Times are seconds in a part and ms in RocketMQ's settings."""
    config, specs = BrokerConfig(), specs_of(declared)
    assert all(spec.doc for spec in specs.values())
    for spec in specs.values():
        if spec.rocketmq_name in config.names() and spec.default is not None:
            factor = 1000 if spec.unit == "s" and spec.rocketmq_name.startswith("ha") else 1
            assert config[spec.rocketmq_name] == spec.default * factor, spec.rocketmq_name

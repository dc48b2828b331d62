"""A broker.conf as a Java broker reads it: RocketMQ's setters take the values of the property file.

A value that Java skips silently is skipped here with a warning. A value on which a broker would not start is an error.
The caller passes the declarations of all settings. Source: MixAll.properties2Object, BrokerStartup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mqfast.errors import ConfigError
from mqfast.settings.declaration import SettingSpec
from mqfast.settings.rocketmq_names import KNOWN_TO_ROCKETMQ
from mqfast.util.java_text import I32_MAX, I64_MAX, java_number, java_trim
from mqfast.util.property_file import parse_properties

__all__ = ["BrokerConf", "read_conf"]

# The log of this store has another format and place.
_OTHER_STORES: Final = ("enableDLegerCommitLog",)
# Settings of RocketMQ up to 4.4; later releases ignore them, and many published files still have them.
_FORMER: Final = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}


class BrokerConf(NamedTuple):
    """The content of a file: ``values`` by field, ``hosts`` by property, the names of the rest, and warnings for the
    user.
    """

    values: dict[str, Any]
    hosts: dict[str, Any]
    without_effect: tuple[str, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]


def _value(key: str, text: str, spec: SettingSpec, warn: Callable[[str], None]) -> Any:
    """Return the value that Java's setter gets; None where the default stays."""
    kind, value = spec.kind, java_trim(text)
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            warn(f"{key}: expected true or false, found {text!r}; it counts as false, as in Java")
        return text.isascii() and text.lower() == "true"
    if kind == "int":
        bits = 64 if spec.high > I32_MAX else 32
        number = java_number(text, I64_MAX if bits == 64 else I32_MAX)
        if number is None:
            warn(
                f"{key}: expected a whole number of {bits} bits without blanks, found {text[:80]!r}; the default "
                "counts, as in Java"
            )
            return None
        if spec.clamp:
            low, high = spec.clamp
            if not low <= number <= high:
                moved = min(max(number, low), high)
                warn(f"{key}: {number} is outside {low} to {high} and counts as {moved}")
                return moved
        return number
    if any("\x80" <= c <= "\xff" for c in value):
        warn(f"{key}: found {value!r}, since Java reads the file as ISO-8859-1; write other characters as \\uXXXX")
    if key == "storeType":
        return _store_type(key, value, warn)
    if spec.choices and value not in spec.choices:
        warn(f"{key}: expected {' or '.join(spec.choices)}, found {value!r}; the default counts, as in Java")
        return None
    if not value and spec.optional:
        warn(f"{key}: expected a value, found none; it counts as not given")
        return None
    return value


def _store_type(key: str, value: str, warn: Callable[[str], None]) -> str:
    if value.lower() == "defaultrocksdb":
        raise ConfigError(f"{key}: expected default, found {value!r}: its queues are another format")
    if value != "default":
        warn(f"{key}: expected default, found {value!r}; it counts as default, as in Java")
    return "default"


def read_conf(
    text: str,
    where: str,
    fields: Mapping[str, str],
    settings: Mapping[str, SettingSpec],
    hosts: Mapping[str, str],
    unknown: Callable[[str], str],
) -> BrokerConf:
    """Return the settings of a property file.

    Args: fields: property -> field; settings: field -> declaration; hosts: properties that make an address together;
        unknown: the warning for an unknown name.
    Raises: ConfigError for what no broker of this kind of store would start with.
    """
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    addresses: dict[str, Any] = {}
    idle: list[str] = []
    strange: list[str] = []
    warnings: list[str] = []

    def warn(said: str) -> None:
        warnings.append(f"{where}: {said}")

    for key, value_text in parse_properties(text).items():
        field = fields.get(key)
        if key in hosts:
            if key == "listenPort" and java_number(value_text) is None:
                warn(f"{key}: expected a whole number, found {value_text!r}; {hosts[key]} counts, as in Java")
                continue
            addresses[key] = java_number(value_text) if key == "listenPort" else java_trim(value_text)
        elif key in _FORMER:
            idle.append(key)
            warn(f"{key}: no effect, as in RocketMQ since 4.5; the name is {_FORMER[key]}")
        elif field is not None:
            value = _value(key, value_text, settings[field], warn)
            if value is None:
                continue
            if field in values and values[field] != value:
                # Java knows only the newer spelling, which the table names.
                newer = settings[field].rocketmq_name
                warn(f"{spelled[field]} and {key} are one setting with two values; that of {newer} counts")
                if key != newer:
                    continue
            values[field], spelled[field] = value, key
        elif key in _OTHER_STORES and java_trim(value_text).lower() == "true":
            raise ConfigError(f"{key}: expected false, found true: its log is another format in another place")
        elif key in KNOWN_TO_ROCKETMQ:
            idle.append(key)
        else:
            strange.append(key)
            warn(unknown(key))
    return BrokerConf(values, addresses, tuple(idle), tuple(strange), tuple(warnings))

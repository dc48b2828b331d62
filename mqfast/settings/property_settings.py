"""Settings of a server by RocketMQ's names: from a property file, the command line and administrators.

A value of the wrong kind is an error; an unknown name is a warning with the nearest names. Source:
MixAll.properties2Object, Configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from mqfast.errors import ConfigError
from mqfast.settings.declaration import SettingSpec
from mqfast.util.java_text import I64_MAX, java_number, java_trim
from mqfast.util.near_names import did_you_mean
from mqfast.util.property_file import decode_conf, parse_properties

__all__ = ["PropertySettings", "as_text"]


class PropertySettings:
    """All settings of one server with their values.

    Args: known: name -> declaration; what: the server, for messages; hidden: names that ``text`` omits; also: further
        names for hints.
    Attributes: ``warnings``: texts for the user; ``unknown``: unknown names; ``listeners``: called after each change.
    """

    def __init__(
        self, known: Mapping[str, SettingSpec], what: str, hidden: tuple[str, ...] = (), *, also: Iterable[str] = ()
    ) -> None:
        self._known: Final = known
        self._what: Final = what
        self._hidden: Final = hidden
        self._also: Final = also
        self._given: set[str] = set()
        self._values: dict[str, bool | int | str] = {name: spec.default for name, spec in known.items()}
        self.warnings: list[str] = []
        self.unknown: list[str] = []
        self.listeners: list[Callable[[], object]] = []

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def read_file(self, path: str | Path) -> None:
        """Read the settings of a property file. Raises: ConfigError, OSError."""
        text, warnings = decode_conf(Path(path).read_bytes())
        self.warnings += [f"{path}: {line}" for line in warnings]
        self.update(parse_properties(text), str(path))

    def update(self, pairs: Mapping[str, str], where: str) -> None:
        """Set values. Raises: ConfigError for a value of the wrong kind; no value changes then."""
        taken = {name: self._parsed(name, text, where) for name, text in pairs.items() if name in self._known}
        without_effect = sorted(name for name in taken if not self._known[name].has_effect)
        if without_effect:
            self.warnings.append(f"{where}: without effect here: {', '.join(without_effect)}")
        for name in pairs:
            if name not in self._known:
                self.unknown.append(name)
                hint = did_you_mean(name, [*self._known, *self._also], count=3)
                self.warnings.append(f"{where}: expected a setting of the {self._what}, found {name}{hint}")
        self._values.update(taken)
        self._given.update(taken)
        for listener in self.listeners:
            listener()

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._known)

    def is_live(self, name: str) -> bool:
        """Return whether an administrator may change this setting over the network: the change takes effect at once."""
        return name in self._known and self._known[name].is_live

    def acts(self, name: str) -> bool:
        """Return whether this key has an effect here."""
        return name in self._known and self._known[name].has_effect

    def check_values(self, pairs: Mapping[str, str], where: str) -> None:
        """Check values as ``update`` does, without a change. Raises: ConfigError."""
        for name, text in pairs.items():
            if name in self._known:
                self._parsed(name, text, where)

    def _parsed(self, name: str, text: str, where: str) -> bool | int | str:
        spec = self._known[name]
        value = java_trim(text)
        if spec.kind == "bool":
            if value.lower() not in ("true", "false"):
                raise ConfigError(f"{where}: {name}: expected true or false, found {text!r}")
            return value.lower() == "true"
        if spec.kind == "int":
            number = java_number(value, I64_MAX)
            if number is None or not spec.is_in_range(number):
                raise ConfigError(
                    f"{where}: {name}: expected a whole number from {spec.low} to {spec.high}, found {text!r}"
                )
            return number
        return value

    def given(self) -> dict[str, str]:
        """Return name -> text of the given settings, secrets included."""
        return {name: as_text(self._values[name]) for name in self._given}

    def text(self) -> str:
        """Return all settings as a property file, sorted; no secrets."""
        lines = sorted(f"{name}={as_text(value)}" for name, value in self._values.items() if name not in self._hidden)
        return "".join(line + "\n" for line in lines)


def as_text(value: bool | int | str) -> str:
    """Return a value in the form of a property file."""
    return str(value).lower() if isinstance(value, bool) else str(value)

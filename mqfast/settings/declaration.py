"""The declaration of a setting: default, unit, range, RocketMQ's name, effect and text; and the checks that follow.

Stores, brokers, name servers, clients, replication and Spark declare settings with ``SettingSpec``: in a table by
name, or as fields of a dataclass by ``setting`` and ``text_setting``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mqfast.errors import ConfigError
from mqfast.util.java_text import I32_MAX
from mqfast.util.near_names import did_you_mean
from mqfast.util.validate import expected_range, is_number, is_whole

__all__ = ["SettingSpec", "check_setting", "read_setting", "setting", "specs_of", "text_setting"]

_KINDS: Final[dict[type, str]] = {bool: "bool", int: "int", float: "number"}
_FIELD_KEY: Final = "mqfast.setting"


class SettingSpec(NamedTuple):
    """The declaration of a setting.

    Attributes:
        kind: bool, int, number, str or function.
        low, high: both allowed, of a number.
        unit: of a number, for errors and documents.
        choices: all values of a text.
        optional: whether None is a value.
        default: the value without a setting; None where the constructor of a client has the default.
        rocketmq_name: the name in a broker.conf; None for a setting of mqfast.
        clamp: the range into which RocketMQ silently moves a number. A keyword outside of it is an error, a value of a
            broker.conf gets a warning.
        broker_default: the default of the broker profile.
        has_effect: whether this engine uses the setting; RocketMQ's other settings are accepted without effect.
        is_live: whether a change takes effect at once, so that an administrator may make one over the network.
        doc: the text of documents.
        read: of a setting that users write as text: the text -> the value. Raises ValueError with the expected form.
        shown: the default as users write it; empty for the default itself.
    """

    kind: str = "str"
    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    default: Any = None
    rocketmq_name: str | None = None
    clamp: tuple[int, int] | None = None
    broker_default: Any = None
    has_effect: bool = True
    is_live: bool = False
    doc: str = ""
    read: Callable[[str], Any] | None = None
    shown: str = ""

    @property
    def shown_default(self) -> str:
        """Return the default as documents show it, empty for None."""
        return self.shown or ("" if self.default is None else str(self.default).lower())

    @classmethod
    def of(cls, default: bool | int | float | str | None, **more: Any) -> SettingSpec:
        """Return a declaration with the kind of the default; a number is from 0 to 2^31 - 1 unless given."""
        kind = more.setdefault("kind", _KINDS.get(type(default), "str"))
        limits = {"low": 0, "high": I32_MAX} if kind in ("int", "number") else {}
        return cls(**{"default": default, "broker_default": default, **limits, **more})

    def expected(self) -> str:
        """Return the values in words: ``int of messages``."""
        name = {"number": "a number", "function": "a function"}.get(self.kind, self.kind)
        return f"{name} of {self.unit}" if self.unit else name

    def has_kind(self, value: object) -> bool:
        """Return whether a value has the type of this setting; a bool is no number."""
        if self.kind == "bool":
            return isinstance(value, bool)
        if self.kind == "str":
            return isinstance(value, str)
        return is_whole(value) if self.kind == "int" else is_number(value)

    def is_in_range(self, value: Any) -> bool:
        """Return whether a value of the right type is within the limits; NaN is not."""
        low, high = self.limits
        return self.kind not in ("int", "number") or is_number(value, low, high)

    @property
    def limits(self) -> tuple[float, float]:
        """Return the lowest and highest number of a keyword."""
        return self.clamp or (self.low, self.high)


def check_setting(
    name: str, value: Any, spec: SettingSpec, *, error: type[Exception] = ConfigError, hints: bool = True
) -> None:
    """Check a value.

    Args: hints: the error names the unit and the nearest choice; else the type of the value.
    Raises: ``error``: ``NAME: expected ..., found ...``.
    """
    if value is None and spec.optional:
        return
    if not spec.has_kind(value):
        if hints:
            raise error(f"{name}: expected {spec.expected()}, found {value!r}")
        raise error(f"{name}: expected {spec.kind}, found {type(value).__name__} {value!r}")
    if spec.choices and value not in spec.choices:
        if hints:
            words = f"{', '.join(spec.choices[:-1])} or {spec.choices[-1]}"
            raise error(f"{name}: expected {words}, found {value!r}{did_you_mean(value, spec.choices)}")
        raise error(f"{name}: expected {' or '.join(spec.choices)}, found {value!r}")
    if not spec.is_in_range(value):
        low, high = spec.limits
        raise error(f"{name}: {expected_range(low, high, spec.unit, value)}")


def read_setting(name: str, text: str, spec: SettingSpec, *, error: type[Exception] = ConfigError) -> Any:
    """Return the value that a text means. Raises: ``error``: ``NAME: expected ..., found ...``."""
    assert spec.read is not None
    try:
        return spec.read(text)
    except ValueError as failure:
        raise error(f"{name}: expected {failure}, found {text!r}") from None


def setting(default: Any, rocketmq_name: str | None, unit: str, doc: str, **more: Any) -> Any:
    """Return a dataclass field that declares a setting; ``broker_default`` in ``more``: that of the broker profile.

    A field with another default in the broker profile is None until the class knows the profile.
    """
    if default is None:
        more |= {"kind": "int" if unit == "bytes" else "str", "optional": True}
    spec = SettingSpec.of(default, unit=unit, rocketmq_name=rocketmq_name, doc=doc, **more)
    has_one_default = spec.broker_default == default
    return dataclasses.field(default=default if has_one_default else None, metadata={_FIELD_KEY: spec})


def text_setting(spec: SettingSpec, *, secret: bool = False, **more: Any) -> Any:
    """Return a dataclass field of a setting that users write as text.

    Args: secret: not in the repr; more: further metadata of the field.
    """
    return dataclasses.field(default=spec.default, repr=not secret, metadata={_FIELD_KEY: spec, **more})


def specs_of(declared: Any) -> dict[str, SettingSpec]:
    """Return the declarations of a dataclass by field, in the order of the fields."""
    return {
        field.name: field.metadata[_FIELD_KEY] for field in dataclasses.fields(declared) if _FIELD_KEY in field.metadata
    }

"""Retention rules in plain words: ``"never"``, ``"72h"``, ``"20GB"``, ``"72h, 20GB"``, ``"rocketmq"``.

Parses the words only; ``mqfast/store/log/retention.py`` deletes files. Without words there is no rule that deletes.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mqfast.errors import ConfigError

__all__ = ["RetentionRules", "parse_retention"]

_I64_MAX: Final = 2**63 - 1
_SECOND_MS: Final = 1000
_MS_OF_UNIT: Final = {
    "s": _SECOND_MS,
    "m": 60 * _SECOND_MS,
    "h": 3600 * _SECOND_MS,
    "d": 86_400 * _SECOND_MS,
    "w": 7 * 86_400 * _SECOND_MS,
}
# Written out, in the singular; a final "s" is accepted as well.
_WORDS: Final = {
    "sec": "s",
    "second": "s",
    "min": "m",
    "minute": "m",
    "hour": "h",
    "hr": "h",
    "day": "d",
    "week": "w",
}
_BYTES_OF_UNIT: Final = {
    "b": 1,
    "byte": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)},
}
_PART: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{1,8})", re.ASCII)


class RetentionRules(NamedTuple):
    """Retention rules of log files. A file is deleted if any rule says so; without a rule no file is deleted.

    ``age_ms``: age of the youngest message of a file. ``log_bytes``: bytes of log behind a file. ``rocketmq``: a
    broker's rules, with its hours and its levels of disk use; ``age_ms`` is None then.
    """

    age_ms: int | None = None
    log_bytes: int | None = None
    rocketmq: bool = False


def _expected(text: object) -> ConfigError:
    return ConfigError(
        'retention: expected "never", an age ("72h", "3d"), a size ("20GB", "500MiB"), both ("72h, 20GB") or '
        f'"rocketmq", found {text!r}'
    )


def _unit(word: str) -> tuple[str, int] | None:
    """Return ("age", ms) or ("size", bytes) of one unit."""
    if word in _MS_OF_UNIT:
        return "age", _MS_OF_UNIT[word]
    if word in _BYTES_OF_UNIT:
        return "size", _BYTES_OF_UNIT[word]
    single = word.removesuffix("s")
    if single in _WORDS:
        return "age", _MS_OF_UNIT[_WORDS[single]]
    return ("size", 1) if single == "byte" else None


def parse_retention(text: str) -> RetentionRules:
    """Return the rules for the words of ``retention=``.

    Args: text: parts are separated by a comma or ``and``; units of age are s, m (minutes), h, d and w, units of size
    B, kB, MB, ... (powers of 1000) and KiB, MiB, ... (powers of 1024). Capital letters do not matter.
    Raises: ConfigError.
    """
    if not isinstance(text, str):
        raise _expected(text)
    plain = text.strip().lower()
    if plain == "never":
        return RetentionRules()
    if plain == "rocketmq":
        return RetentionRules(rocketmq=True)
    limits: dict[str, int] = {}
    for part in re.split(r"\s*,\s*|\s+and\s+", plain):
        match = _PART.fullmatch(part)
        unit = _unit(match[2]) if match else None
        if match is None or unit is None:
            raise _expected(text)
        kind, factor = unit
        whole, _, fraction = match[1].partition(".")
        amount = int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)
        if not 0 < amount <= _I64_MAX:
            raise ConfigError(f"retention: expected more than nothing and less than 2^63, found {part!r} in {text!r}")
        if kind in limits:
            raise ConfigError(f"retention: expected one {kind}, found two in {text!r}")
        limits[kind] = amount
    return RetentionRules(limits.get("age"), limits.get("size"))

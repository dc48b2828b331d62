"""Which settings of a broker are secrets, by their names and values: for pages and files that others read.

RocketMQ's brokers report all settings, those with passwords as well. No requests.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_secret"]

_NAMES: Final = re.compile(
    "secret|passw|credential|access_?key|token|private|initAuthenticationUser|socksProxyConfig|ExporterHeader",
    re.IGNORECASE,
)
_VALUES: Final = re.compile(r'"(password|secretKey|token)"|\bBearer ', re.IGNORECASE)


def is_secret(name: str, value: object) -> bool:
    """Return whether a setting is a secret."""
    return bool(_NAMES.search(name) or _VALUES.search(str(value)))

"""Fetches htmx and uPlot from the npm registry by version and checksum, with the licences, into ``static``.

Run by a build of a wheel or of a checkout (setup.py), or by ``python -m mqfast.console.fetch_static``. Must never keep
a file whose archive has another checksum, or import a module outside of the standard library.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["fetch", "missing"]

_REGISTRY: Final = "https://registry.npmjs.org"
_STATIC: Final = Path(__file__).parent / "static"
_BYTES_MAX: Final = 16 << 20
_TIMEOUT_S: Final = 20


class _Package(NamedTuple):
    """An archive. Attributes: sha512: of the archive, in npm's form; files: name in the archive -> name here."""

    name: str
    version: str
    sha512: str
    files: dict[str, str]


_PACKAGES: Final = (
    _Package(
        "htmx.org",
        "4.0.1",
        "oF7JgXhDW9UXCy/k1ZYFUQgzu/rm19ORWPSPNL91vPluB2PB9+MV55tyQdH/w7o2EAbTYUG5SDW1R60mdkdqGg==",
        {"package/dist/htmx.min.js": "htmx.min.js", "package/LICENSE": "htmx.LICENSE"},
    ),
    _Package(
        "uplot",
        "1.6.32",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {
            "package/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
            "package/dist/uPlot.min.css": "uPlot.min.css",
            "package/LICENSE": "uPlot.LICENSE",
        },
    ),
)


def missing(static: Path = _STATIC) -> list[str]:
    """Return the names of files that are not there."""
    return [name for package in _PACKAGES for name in package.files.values() if not (static / name).is_file()]


def fetch(static: Path = _STATIC, registry: str | None = None) -> None:
    """Fetch what is missing. Args: registry: default: npm_config_registry, else npm's. Raises: OSError, ValueError."""
    registry = (
        registry
        or os.environ.get("npm_config_registry")  # noqa: SIM112 - npm's own name
        or _REGISTRY
    ).rstrip("/")
    for package in _PACKAGES:
        if all((static / name).is_file() for name in package.files.values()):
            continue
        url = f"{registry}/{package.name}/-/{package.name}-{package.version}.tgz"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            archive = answer.read(_BYTES_MAX)
        computed = base64.b64encode(hashlib.sha512(archive).digest()).decode()
        if computed != package.sha512:
            raise ValueError(f"{url}: expected the checksum sha512-{package.sha512}, found sha512-{computed}")
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
            for inside, name in package.files.items():
                content = files.extractfile(inside)
                if content is None:
                    raise ValueError(f"{url}: expected the file {inside}, found none")
                part = static / f"{name}.part"
                part.write_bytes(content.read())
                part.replace(static / name)


def main() -> int:
    """Fetch what is missing; print a failure as a line."""
    try:
        fetch()
    except (OSError, ValueError) as error:
        print(f"the console works without {', '.join(missing())}, with plain pages: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

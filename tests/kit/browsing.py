"""A browser for tests of the console: the distribution's Chromium by playwright, and axe-core from npm.

Room: tests. Tests skip where Chromium or playwright is not installed; checks by axe skip without a network.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_cluster import TOKEN

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = "4.14.1"
AXE_SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
_CACHE = Path(__file__).resolve().parents[2] / "build" / f"axe-core-{AXE}.min.js"


def skip_without_browser() -> None:
    """Skip where no Chromium is installed."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: mqfast[test]")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A running Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        # Without a sandbox: containers of a build have no user namespaces. Only our own pages are opened.
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            chromium.close()


class Visitor:
    """A person at a page. Attributes: page: of playwright; complaints: errors of scripts and of the content policy."""

    def __init__(self, chromium: Any, url: str, scheme: str = "light", session: Any = None) -> None:
        self.url = url
        self.context = chromium.new_context(
            color_scheme=scheme, viewport={"width": 1320, "height": 860}, storage_state=session
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)

    def log_in(self) -> None:
        self.page.goto(self.url)
        self.page.get_by_label("Token").fill(TOKEN)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("#live")

    def open(self, path: str) -> None:
        self.page.goto(self.url + path)

    def reload_until(self, selector: str) -> None:
        """Load the page again until it has something: the collector needs a round."""
        for _ in range(100):
            if self.page.locator(selector).count():
                return
            self.page.wait_for_timeout(200)
            self.page.reload()
        raise AssertionError(f"expected {selector}, found {self.page.locator('main').inner_text()}")

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []


def axe_script() -> str:
    """The text of axe-core, fetched once by version and checksum; a skip without a network."""
    if not _CACHE.is_file():
        registry = (os.environ.get("npm_config_registry") or "https://registry.npmjs.org").rstrip("/")  # noqa: SIM112
        try:
            with urllib.request.urlopen(f"{registry}/axe-core/-/axe-core-{AXE}.tgz", timeout=20) as answer:
                archive = answer.read()
        except OSError as error:
            pytest.skip(f"axe-core cannot be fetched: {error}")
        assert base64.b64encode(hashlib.sha512(archive).digest()).decode() == AXE_SHA512
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
            content = files.extractfile("package/axe.min.js")
            assert content is not None
            _CACHE.parent.mkdir(exist_ok=True)
            part = _CACHE.with_suffix(f".{os.getpid()}")
            part.write_bytes(content.read())
            part.replace(_CACHE)
    return _CACHE.read_text(encoding="utf-8")


def barriers(page: Any, script: str) -> list[str]:
    """The serious and critical findings of axe on a page."""
    page.evaluate(script)
    found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa']})"
    )
    return [
        f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]

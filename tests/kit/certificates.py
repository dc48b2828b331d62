"""Certificates for tests, made by openssl: a CA and what it signs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["Authority"]


class Authority:
    """A CA in a folder of its own. Skips the test where there is no openssl."""

    def __init__(self, home: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not here to make certificates")
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.ca = home / "ca.pem"
        self._run(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key",
            "-out", "ca.pem",
        )  # fmt: skip

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.home, check=True, capture_output=True)

    def sign(self, name: str) -> tuple[Path, Path]:
        """The files of a certificate for 127.0.0.1 and of its key."""
        (self.home / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        self._run(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out",
            f"{name}.csr",
        )  # fmt: skip
        self._run(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", f"{name}.ext", "-out", f"{name}.pem",
        )  # fmt: skip
        return self.home / f"{name}.pem", self.home / f"{name}.key"

"""The units of docs/service run as docs/deployment.md installs them: with RocketMQ's own files of settings, by a user
without a home directory who can write into the directory of the state only.

Room: tests/broker. There is no systemd here: the test reads the units, and does what systemd would.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mqfast.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
BOX = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
NOBODY = 65534
# Enters a network of its own, and becomes a command in a directory.
LAUNCHER = """
import os, sys
sys.path.insert(0, sys.argv[1])
import own_network
if not own_network.enter():
    sys.exit(77)
os.chdir(sys.argv[2])
os.execvp(sys.argv[3], sys.argv[3:])
"""
# May read what root may, as the interpreter of a test may lie below root's home; writes where anybody may.
AS_NOBODY = [
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search", "--no-new-privs",
]  # fmt: skip


def unit(name: str) -> configparser.SectionProxy:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[method-assign,assignment]
    parsed.read_string((ROOT / "docs" / "service" / f"mqfast-{name}.service").read_text(encoding="utf-8"))
    return parsed["Service"]


def test_the_installation_has_ten_lines_and_names_what_the_units_need() -> None:
    lines = BOX.splitlines()
    assert len(lines) == 10
    for name in ("namesrv", "broker"):
        service = unit(name)
        words = service["ExecStart"].split()
        assert f"/etc/mqfast/{words[-1].rpartition('/')[2]}" == words[-1]
        assert words[-1] in BOX
        assert f"docs/service/mqfast-{name}.service" in BOX
        assert words[0].removesuffix("bin/mqfast").rstrip("/") in BOX
        assert re.search(rf"^useradd .* {service['User']}$", BOX, re.MULTILINE)
        assert service["ProtectSystem"] == "strict"
        assert service["ReadWritePaths"] == service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    for line in lines:
        for words in map(shlex.split, line.split("&&")):
            if words[0].endswith("/mqfast"):
                build_parser().parse_args(words[1:])
            elif words[0].endswith("/pip"):
                assert words[1:] == ["install", ".[broker]"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="units are of Linux")
@pytest.mark.parametrize("name", ["namesrv", "broker"])
def test_a_unit_runs_under_its_own_restrictions(name: str, disk_path: Path) -> None:
    state, etc = disk_path / "state", disk_path / "etc"
    for place in (state, etc):
        place.mkdir()
    for line in BOX.splitlines():  # the two files of settings
        if line.startswith("printf"):
            subprocess.run(["sh", "-c", line.replace("/etc/mqfast", str(etc))], check=True)
    service = unit(name)
    words = service["ExecStart"].replace("/etc/mqfast", str(etc)).split()
    words[0] = str(Path(sys.executable).with_name("mqfast"))
    if not os.access(words[0], os.X_OK):
        pytest.skip("mqfast is not installed as a command")
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed")
        os.chown(state, NOBODY, NOBODY)
        words = [*AS_NOBODY, *words]
    said = state / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(said))
        said.chmod(0o777)
        notify.settimeout(120)
        given = dict(pair.split("=", 1) for pair in service["Environment"].split())
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": str(said),
            **{key: value.replace("/var/lib/mqfast", str(state)) for key, value in given.items()},
        }  # fmt: skip
        launcher = [sys.executable, "-c", LAUNCHER, str(ROOT / "tests" / "kit"), str(state)]
        process = subprocess.Popen(
            [*launcher, *words],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
        reader.start()
        try:
            message = notify.recv(4096)
        except TimeoutError:
            if process.poll() == 77:
                pytest.skip("this system gives no process a network of its own")
            raise AssertionError("".join(lines)) from None
        finally:
            process.terminate()
        assert process.wait(200) == 0, "".join(lines)
        reader.join(60)
    assert b"READY=1" in message, "".join(lines)
    assert "Traceback" not in "".join(lines)
    if name == "broker":
        assert (state / "store" / "commitlog").parent.is_dir(), "the store is not below the directory of the state"
    assert sorted(path.name for path in etc.iterdir()) == ["broker.conf", "namesrv.properties"]

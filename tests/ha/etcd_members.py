"""Members of etcd as processes, for tests of fail-over: real ones, from Debian's package etcd-server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_ports

from mqfast.errors import MqfastError
from mqfast.ha.failover.etcd import Etcd

__all__ = ["NEEDS_ETCD", "EtcdMember", "one_etcd"]

ETCD = shutil.which("etcd")
NEEDS_ETCD = pytest.mark.skipif(ETCD is None, reason="etcd is not installed (Debian: etcd-server)")


class EtcdMember:
    """One member.

    Args: hosts: name -> address of all members; prefix: of the command, as ``nsenter --net=...``; tls: certificate and
        key for clients.
    """

    def __init__(
        self,
        name: str,
        hosts: dict[str, str],
        work: Path,
        client: int,
        peer: int,
        prefix: tuple[str, ...] = (),
        tls: tuple[str, str] | None = None,
    ) -> None:
        host = hosts[name]
        scheme = "http" if tls is None else "https"
        self.endpoint = f"{host}:{client}" if tls is None else f"https://{host}:{client}"
        self._command = [
            *prefix, ETCD or "etcd", "--name", name, "--data-dir", str(work / f"etcd-{name}"),
            "--listen-client-urls", f"{scheme}://{host}:{client}",
            "--advertise-client-urls", f"{scheme}://{host}:{client}",
            "--listen-peer-urls", f"http://{host}:{peer}", "--initial-advertise-peer-urls", f"http://{host}:{peer}",
            "--initial-cluster", ",".join(f"{one}=http://{at}:{peer}" for one, at in hosts.items()),
            "--log-level", "error", *(() if tls is None else ("--cert-file", tls[0], "--key-file", tls[1])),
        ]  # fmt: skip
        self.data = work / f"etcd-{name}"
        self._log = work / f"etcd-{name}.log"
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def lose_its_data(self, other: Path | None = None) -> None:
        """End, and start again without data, or with a copy that was made before."""
        self.end()
        shutil.rmtree(self.data)
        if other is not None:
            shutil.copytree(other, self.data)
        self.start()

    def copy_its_data(self, to: Path) -> None:
        """End, copy the data, and start again."""
        self.end()
        shutil.copytree(self.data, to)
        self.start()

    def signal(self, number: int) -> None:
        """Send a signal. After SIGSTOP every thread of the member has stopped."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(200)


@contextlib.contextmanager
def one_etcd(work: Path, tls: tuple[str, str] | None = None) -> Iterator[EtcdMember]:
    """A cluster of one member that answers."""
    port = free_ports(2)
    member = EtcdMember("n1", {"n1": "127.0.0.1"}, work, port, port + 1, tls=tls)
    try:
        client = Etcd([member.endpoint], 1.0, None if tls is None else ssl.create_default_context(cafile=tls[0]))
        deadline = time.monotonic() + 60
        while True:
            try:
                client.read("x")
                break
            except MqfastError:
                assert time.monotonic() < deadline, "etcd does not answer"
                time.sleep(0.05)
        client.close()
        yield member
    finally:
        member.end()

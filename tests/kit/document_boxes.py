"""Runs the fenced boxes of one page as printed, in order, in one folder: ``python document_boxes.py PAGE FOLDER``.

Room: tests; test_document_boxes.py starts it, as a process with a network of its own (own_network.py). Python is run
as a program, a line of a shell box by bash. A server is started, and stays until the page ends; ``pip install`` is
checked by its words. It must never change a box but by ``EDITS``. A page that is not in ``PAGES`` runs elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import own_network

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 240.0  # below the limit of a test, so that a hang shows what the program printed
LIMIT_S = 600.0  # of one box: only a hang takes so long
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
# A danger of this machine is none of the page; README has no group yet.
# A slave that was just started may not be connected yet.
ALLOWED = {"mqfast doctor store": (0, 1), "mqfast store groups": (0, 6), "mqfast ha status": (0, 6)}
SERVERS = (["mqfast", "up"], ["mqfast", "namesrv"], ["mqfast", "broker"], ["mqfast", "console"])


@dataclasses.dataclass(frozen=True)
class Box:
    """One fenced box: its page, number on the page from 0, language, and text without the indentation of its fence."""

    page: str
    number: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}, box {self.number}"


def boxes(page: str) -> list[Box]:
    """The fenced boxes of a page."""
    found = _FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [
        Box(page, number, language, re.sub(f"^{indent}", "", code, flags=re.MULTILINE))
        for number, (indent, language, code) in enumerate(found)
    ]


def pages() -> list[str]:
    """README and the pages of docs/ that have boxes."""
    names = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
    return [name for name in names if boxes(name)]


def command_lines(code: str) -> list[str]:
    """The commands of a shell box, each in one line, without comments of their own line."""
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def check_pip(words: list[str]) -> None:
    """``pip install`` of a checkout, with extras that there are: mqfast itself is on no index yet."""
    assert words[:2] == ["pip", "install"], words
    for wanted in words[2:]:
        if "mqfast" in wanted or wanted.startswith("."):
            parts = re.fullmatch(r"\.(?:\[([\w,]+)\])?", wanted)
            assert parts is not None, f"{wanted}: expected a checkout, as in: pip install '.[broker]'"
            assert set((parts[1] or "cli").split(",")) <= _EXTRAS, wanted


class Runner:
    """Runs boxes in a folder. Servers stay until ``close``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder),
            "PYTHONPATH": str(ROOT), "NAMESRV_ADDR": "127.0.0.1:9876", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        self.environment.pop("PYTEST_CURRENT_TEST", None)
        self._servers: list[tuple[str, subprocess.Popen[str]]] = []
        self.units: dict[str, list[str]] = {}  # of systemd: name -> command

    def python(self, code: str, *, until: str | None = None) -> str:
        """Run a program to its end; or until a text is printed, and interrupt it. Returns: what it printed."""
        program = self.folder / "program.py"
        program.write_text(code, encoding="utf-8")
        if until is not None:
            return self._until([sys.executable, str(program)], until, lambda: None)
        return self._run([sys.executable, str(program)], code)

    def shell(self, code: str) -> None:
        """Run each command of a shell box."""
        for line in command_lines(code):
            words = shlex.split(line, comments=True)
            if words[0] == "pip":
                check_pip(words)
            elif words[0] == "systemctl":
                self.control(*words[1:])
            elif words[:2] in SERVERS and not {"--check-store", "--promote", "--help"} & set(words):
                self.serve(words)
            elif words[:3] == ["mqfast", "store", "tail"]:
                put = ["mqfast", "store", "put", words[3], words[4]]
                self._until(words, "", functools.partial(self._run, put, line, given="a message to see"))
            else:
                self._run(["bash", "-c", line], line, allowed=ALLOWED.get(" ".join(words[:3]), (0,)))

    def control(self, action: str, unit: str) -> None:
        """Do what systemd would with a unit of the page: start, stop or restart."""
        words = self.units[unit]
        if action in ("stop", "restart"):
            ((line, process),) = [pair for pair in self._servers if pair[0] == shlex.join(words)]
            self._servers.remove((line, process))
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 0, f"{line} ended with {process.returncode}"
        if action in ("start", "restart"):
            self.serve(words)

    def serve(self, words: list[str]) -> None:
        """Start a server, and wait until it says that it listens."""
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, env=self.environment
        )
        self._servers.append((shlex.join(words), process))
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if " listens on " in line or line.startswith("CONSOLE="):
                threading.Thread(target=process.stdout.read, daemon=True).start()  # or a full pipe would stop it
                return
        raise AssertionError(f"{shlex.join(words)} ended with {process.wait()}:\n{said}")

    def close(self) -> None:
        """End the servers as an operator does. Raises: AssertionError for one that does not end in order."""
        for _, process in self._servers:
            process.send_signal(signal.SIGTERM)
        for words, process in self._servers:
            assert process.wait(LIMIT_S) == 0, f"{words} ended with {process.returncode}"

    def _run(self, words: list[str], shown: str, given: str | None = None, allowed: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=self.folder, env=self.environment, timeout=LIMIT_S, input=given
        )
        said = done.stdout[-2000:] + done.stderr[-4000:]
        assert done.returncode in allowed, f"{shown}\nended with {done.returncode}:\n{said}"
        return done.stdout

    def _until(self, words: list[str], text: str, feed: Callable[[], object]) -> str:
        """Run what does not end by itself until it prints a text, with ``feed`` once a second, and interrupt it."""
        with (self.folder / "errors").open("w+") as errors:
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=self.folder, env=self.environment
            )
            assert process.stdout is not None
            stop = threading.Event()

            def feeding() -> None:
                while not stop.is_set():
                    feed()
                    stop.wait(1.0)

            feeder = threading.Thread(target=feeding)
            feeder.start()
            watchdog = threading.Timer(HANG_S, process.kill)
            watchdog.start()
            said = ""
            try:
                for line in process.stdout:
                    said += line
                    if text in line:
                        break
            finally:
                watchdog.cancel()
                stop.set()
                feeder.join()
            errors.seek(0)
            assert text in said, f"{shlex.join(words)}\nprinted no {text!r} but {said!r}:\n{errors.read()}"
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LIMIT_S)
            errors.seek(0)
            assert said, f"{shlex.join(words)}\nprinted nothing:\n{errors.read()}"
            assert process.returncode in (0, 1, 130, -signal.SIGINT), f"{words}: {process.returncode}:\n{errors.read()}"
        return said


# --- what a page needs beforehand ---

_SEED = """
from mqfast import AdminClient, Producer, PushConsumer

with Producer("seed", trace=True) as producer:
    for number in range(8):
        sent = producer.send("orders", b"%d" % number, tags="paid", keys=f"order-{number}")

def refuse(message):
    raise ValueError("for the dead letters")

consumer = PushConsumer("billing", from_where="earliest", max_reconsume_times=0)
consumer.subscribe("orders", refuse)
with AdminClient() as admin, consumer:
    while not list(admin.dead_letters("billing")) or not admin.trace(sent.msg_id):
        time.sleep(0.1)
print(sent.msg_id)
"""


def _administered(runner: Runner) -> None:
    """A broker with a topic, a group, a dead letter and a trace."""
    runner.serve(["mqfast", "up", "brokerName=broker-a", "traceTopicEnable=true"])
    runner.environment["MSG_ID"] = runner.python(_SEED).split()[-1]


def _served(runner: Runner) -> None:
    """A broker with messages."""
    runner.serve(["mqfast", "up"])
    runner.python(
        "from mqfast import Producer\nwith Producer('seed') as producer:\n"
        "    for number in range(8):\n        producer.send('orders', b'%d' % number, tags='new')\n"
    )


def _configured(runner: Runner) -> None:
    """A broker.conf, and a folder with a store."""
    (runner.folder / "broker.conf").write_text("brokerName=broker-a\nfileReservedTime=72\nlistenPort=10921\n")
    runner.python("import mqfast\nwith mqfast.open('DIR') as store:\n    store.put('orders', b'1')\n")


def _operated(runner: Runner) -> None:
    """A name server, a master and a slave as units; a topic, a group and messages."""
    common = "brokerName=broker-a\nflushDiskType=SYNC_FLUSH\nmappedFileSizeCommitLog=1048576\n"
    common += "mappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=1000\nmaxIndexNum=4000\nbrokerIP1=127.0.0.1\n"
    (runner.folder / "broker.conf").write_text(f"{common}brokerRole=SYNC_MASTER\nstorePathRootDir=store\n")
    (runner.folder / "slave.conf").write_text(
        f"{common}brokerRole=SLAVE\nbrokerId=1\nstorePathRootDir=slave\nlistenPort=10921\nhaListenPort=10922\n"
    )
    runner.units = {
        "mqfast-namesrv": ["mqfast", "namesrv", "-p", "9876"],
        "mqfast-broker": ["mqfast", "broker", "-c", "broker.conf"],
        "mqfast-slave": ["mqfast", "broker", "-c", "slave.conf"],
    }
    (runner.folder / "backup").mkdir()
    for unit in runner.units:
        runner.control("start", unit)
    runner.python(
        "import time\nfrom mqfast import AdminClient, Producer\nwith AdminClient(timeout_s=60) as admin, "
        "Producer('seed') as producer:\n    admin.create_topic('orders')\n    admin.create_group('billing')\n"
        "    for number in range(8):\n        producer.send('orders', b'%d' % number)\n"
    )


def _nothing(runner: Runner) -> None:
    """Nothing."""


PAGES: dict[str, Callable[[Runner], None]] = {
    "README.md": _nothing,
    "docs/admin_client.md": _administered,
    "docs/broker.md": _configured,
    "docs/integrations.md": _served,
    "docs/namesrv.md": _nothing,
    "docs/operating.md": _operated,
    "docs/tutorial.md": _nothing,
}
# Pages whose boxes of Python are one program.
TOGETHER = ("docs/tutorial.md",)
# Programs that do not end by themselves, and what they print.
ENDLESS = {("README.md", "PushConsumer"): "two teapots", ("docs/integrations.md", "consumer.start()"): "0"}
# Names of other machines, and ports that the page has in use already.
EDITS = {
    "docs/broker.md": {"names1:9876;names2:9876": "127.0.0.1:9886", "namesrv --host": "namesrv -p 9886 --host"},
    "docs/namesrv.md": {},
    "docs/operating.md": {
        "/var/lib/mqfast/": "",
        "/etc/mqfast/": "",
        "/var/backups/": "backup/",
        "--quiet 35": "--quiet 1",
    },
}


def run_page(page: str, folder: Path) -> list[str]:
    """Run the boxes of a page. Returns: a line for each box that ran."""
    runner = Runner(folder)
    done = []
    try:
        PAGES[page](runner)
        together = "\n".join(box.code for box in boxes(page) if box.language == "python") if page in TOGETHER else None
        for box in boxes(page):
            code = box.code
            for printed, used in EDITS.get(page, {}).items():
                code = code.replace(printed, used)
            if box.language in ("", "sh"):
                runner.shell(code)
            elif box.language == "python" and together is not None:
                runner.python(together)
                together = ""
            elif box.language == "python":
                endless = [text for (name, part), text in ENDLESS.items() if name == page and part in code]
                runner.python(code, until=endless[0] if endless else None)
            else:
                continue
            done.append(f"{box.number} {box.language or 'sh'}")
    finally:
        runner.close()
    return done


def main() -> int:
    """Run one page in a network of its own. Exit code 77: this system does not allow one."""
    if not own_network.enter():
        return 77
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores the signal
    print(json.dumps(run_page(sys.argv[1], Path(sys.argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

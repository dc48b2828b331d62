"""Fetches and compiles the rivals in Java, once: jars from Maven Central by name, kept in the cache of tests/compat.

It must never be needed for anything but benchmarks: without Java or Maven the two rivals are named as skipped.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "compat"))

from java_oracle import MAVEN_TIMEOUT_S, OPENS, build, cache_dir  # noqa: E402
from maven import run_maven  # noqa: E402

CHRONICLE_OPENS = [
    "java.base/java.lang",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.util",
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.misc",
    "jdk.compiler/com.sun.tools.javac",
]
CHRONICLE_EXPORTS = [
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "jdk.unsupported/sun.misc",
    "jdk.compiler/com.sun.tools.javac.file",
]


def missing() -> str:
    """Which tools are not here; empty when all are."""
    return ", ".join(tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None)


def _run(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")


def _classes(jars: Path, target: str, home: Path) -> Path:
    sources = [HERE / "java" / "Bench.java", HERE / "java" / f"{target}.java"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    classes = home / f"bench-{target}"
    stamp = classes / "stamp"
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(classes, ignore_errors=True)
        classes.mkdir(parents=True)
        _run(["javac", "-nowarn", "-d", str(classes), "-cp", f"{jars}/*", *map(str, sources)], home)
        stamp.write_text(digest)
    return classes


def rocketmq(heap: str = "2g") -> list[str]:
    """The command that runs Bench on RocketMQ 5.3.3."""
    home = build("5.3.3")
    classes = _classes(home / "jars", "RocketTarget", home)
    opens = [part for name in OPENS for part in ("--add-opens", f"{name}=ALL-UNNAMED")]
    return [
        "java",
        f"-Xmx{heap}",
        f"-Xms{heap}",
        *opens,
        f"-Drmq.logback.configurationFile={ROOT / 'tests' / 'compat' / 'java' / 'logging-off.xml'}",
        f"-Duser.home={home}",
        f"-Drocketmq.client.logRoot={home}",
        "-cp",
        f"{classes}:{home / 'jars'}/*",
        "Bench",
        "RocketTarget",
    ]


def chronicle(heap: str = "2g") -> list[str]:
    """The command that runs Bench on Chronicle Queue."""
    home = cache_dir() / "chronicle"
    home.mkdir(parents=True, exist_ok=True)
    jars = home / "jars"
    pom = (HERE / "java" / "pom.xml").read_bytes()
    stamp = home / "jars.stamp"
    if not stamp.exists() or stamp.read_text() != hashlib.sha256(pom).hexdigest():
        shutil.rmtree(jars, ignore_errors=True)
        with tempfile.TemporaryDirectory() as work:
            (Path(work) / "pom.xml").write_bytes(pom)
            copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
            run_maven(copy, Path(work), MAVEN_TIMEOUT_S)
        stamp.write_text(hashlib.sha256(pom).hexdigest())
    classes = _classes(jars, "ChronicleTarget", home)
    flags = [part for name in CHRONICLE_OPENS for part in ("--add-opens", f"{name}=ALL-UNNAMED")]
    flags += [part for name in CHRONICLE_EXPORTS for part in ("--add-exports", f"{name}=ALL-UNNAMED")]
    return [
        "java",
        f"-Xmx{heap}",
        f"-Xms{heap}",
        *flags,
        "-Dchronicle.analytics.disable=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
        "-cp",
        f"{classes}:{jars}/*",
        "Bench",
        "ChronicleTarget",
    ]


def chronicle_version() -> str:
    """As the pom names it."""
    text = (HERE / "java" / "pom.xml").read_text()
    return text.split("<artifactId>chronicle-queue</artifactId>")[1].split("<version>")[1].split("<")[0]

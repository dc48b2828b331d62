"""The official SDKs of RocketMQ 5.x in the cache of interop, from the registries of each language."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from sdk_cache import fetch, sdk_home

__all__ = ["java_jar", "node_with_sdk", "python_with_sdk"]

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>sdk</groupId><artifactId>sdk</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-client-java</artifactId><version>{version}</version>
</dependency></dependencies></project>"""


def java_jar(version: str) -> Path:
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("it needs java and mvn")
    home = sdk_home(f"rocketmq-client-java-{version}")
    (home / "pom.xml").write_text(POM.format(version=version))
    fetch(home, ["mvn", "dependency:copy-dependencies", f"-DoutputDirectory={home / 'lib'}"])
    return home / "lib" / f"rocketmq-client-java-{version}.jar"


def python_with_sdk(version: str) -> str:
    home = sdk_home(f"rocketmq-python-client-{version}")
    fetch(
        home,
        [sys.executable, "-m", "venv", str(home)],
        [str(home / "bin" / "pip"), "install", "-q", f"rocketmq-python-client=={version}"],
    )
    return str(home / "bin" / "python")


def node_with_sdk(version: str) -> Path:
    home = sdk_home(f"rocketmq-client-nodejs-{version}")
    (home / "package.json").write_text('{"name": "flows", "private": true}')
    package = f"rocketmq-client-nodejs@{version}"
    fetch(home, ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", package])
    return home

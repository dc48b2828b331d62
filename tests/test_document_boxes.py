"""Each fenced box of README and docs/ runs as it is printed, or its words are checked: none is left out.

Room: tests. document_boxes.py runs the boxes of a page; other tests run those of the pages in ``ELSEWHERE``.
"""

from __future__ import annotations

import ast
import configparser
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from document_boxes import PAGES, ROOT, Box, boxes, check_pip, command_lines, pages

from mqfast.cli.main import build_parser

# (page, language of its boxes) -> the test that runs them; "" is a shell box.
ELSEWHERE = {
    ("docs/client.md", "python"): "tests/client/test_client_page.py",
    ("docs/deployment.md", "python"): "tests/test_docs.py",
    ("docs/deployment.md", "ini"): "tests/test_docs.py",
    ("docs/deployment.md", "sh"): "tests/broker/test_service_units.py",
    ("docs/failover.md", ""): "tests/ha/test_set_ups.py",
    ("docs/grpc.md", "java"): "tests/interop/test_grpc_sdks.py",
    ("docs/grpc.md", "python"): "tests/interop/test_grpc_sdks.py",
    ("docs/ha.md", ""): "tests/ha/test_set_ups.py",
    ("docs/performance.md", "python"): "tests/test_docs.py",
    ("docs/simulation.md", "python"): "tests/sim/test_page.py",
    ("docs/spark/cluster.md", "python"): "tests/spark/test_spark_docs.py",
    ("docs/spark/jobs.md", "python"): "tests/spark/test_spark_docs.py",
    ("docs/spark/read.md", "python"): "tests/spark/test_spark_docs.py",
    ("docs/spark/start.md", "python"): "tests/spark/test_spark_docs.py",
    ("docs/spark/streaming.md", "python"): "tests/spark/test_spark_docs.py",
    ("docs/spark/write.md", "python"): "tests/spark/test_spark_docs.py",
    ("docs/spark-tables.md", "python"): "tests/spark/recipes.py",
    ("docs/testing.md", "python"): "tests/testing/test_testing_plugin.py",
}
# (page, number of the box) -> the test that runs this box alone.
SINGLE_BOXES = {("docs/install.md", 0): "tests/test_release.py"}
LANGUAGES = ("", "sh", "python", "text", "yaml", "json", "ini", "dockerfile", "properties", "java")
BOXES = [box for page in pages() for box in boxes(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_boxes_of_a_page_run_as_printed(page: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "kit" / "document_boxes.py"), page, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this system gives no process a network of its own")
    assert done.returncode == 0, done.stderr[-6000:]
    ran = json.loads(done.stdout.splitlines()[-1])
    assert ran == [
        f"{box.number} {box.language or 'sh'}" for box in boxes(page) if box.language in ("", "sh", "python")
    ]


def check_words(box: Box) -> None:
    """A shell box that is too long or too dangerous to run: its commands and options exist."""
    for line in command_lines(box.code):
        words = shlex.split(line, comments=True)
        if words[0] == "pip":
            check_pip(words)
        elif words[0] == "mqfast":
            build_parser().parse_args(words[1:])
        elif words[:2] == ["python", "-m"] and words[2] != "pytest":
            assert importlib.util.find_spec(words[2]) is not None, line
            known = subprocess.run([sys.executable, *words[1:3], "--help"], capture_output=True, text=True, check=False)
            if known.returncode == 0:
                for option in words[3:]:
                    assert not option.startswith("--") or option.partition("=")[0] in known.stdout, f"{line}: {option}"
        elif words[0] == "spark-submit":
            program = next(word for word in words if word.endswith(".py"))
            assert (ROOT / program).is_file(), line
        else:
            assert words[0] in ("pytest", "make", "python", "openssl") or "=" in words[0], line


@pytest.mark.parametrize("box", [box for box in BOXES if box.page not in PAGES], ids=str)
def test_the_words_of_a_box_that_does_not_run_here(box: Box) -> None:
    if (box.page, box.number) in SINGLE_BOXES:
        assert "first_commands" in (ROOT / SINGLE_BOXES[box.page, box.number]).read_text(encoding="utf-8")
    elif (
        box.language in ("", "sh") and (box.page, box.language) not in ELSEWHERE and box.page != "docs/architecture.md"
    ):
        check_words(box)
    elif box.language == "python":
        ast.parse(box.code)
    elif box.language == "yaml":
        yaml.safe_load(box.code)
    elif box.language == "json":
        json.loads(box.code)
    elif box.language == "ini":
        configparser.ConfigParser(interpolation=None).read_string(box.code)
    elif box.language == "dockerfile":
        check_dockerfile(box.code)


def check_dockerfile(text: str) -> None:
    """Only instructions that there are; mqfast comes from a checkout or a file, since it is on no index."""
    for line in command_lines(text):
        assert re.match(
            r"(FROM|RUN|COPY|VOLUME|STOPSIGNAL|CMD|USER|WORKDIR|ENV|EXPOSE|HEALTHCHECK|ENTRYPOINT) ", line
        ), line
        if "pip install" in line:
            wanted = [word for word in shlex.split(line) if "mqfast" in word]
            assert all(word.startswith("./") or "--no-index" in line for word in wanted), line


def test_the_image_is_built_from_a_checkout() -> None:
    """Each path that is copied is in the project, and reaches the build in spite of the list of what is ignored."""
    service = ROOT / "docs" / "service"
    text = (service / "Dockerfile").read_text(encoding="utf-8")
    check_dockerfile(text)
    copied = [
        words[1:-1] for words in map(str.split, command_lines(text)) if words[0] == "COPY" and "--from" not in words[1]
    ]
    names = [name for part in copied for name in part]
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "csrc", "mqfast"} <= set(names)
    kept = (service / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    for name in names:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in kept, name


def test_every_page_with_boxes_is_run_by_a_test() -> None:
    for box in BOXES:
        if box.language == "python" and box.page not in PAGES:
            test = ELSEWHERE.get((box.page, "python"))
            assert test is not None, f"{box}: no test runs it"
            assert Path(box.page).name in (ROOT / test).read_text(encoding="utf-8"), test
        assert box.language in (
            "",
            "sh",
            "python",
            "javascript",
            "text",
            "yaml",
            "json",
            "ini",
            "dockerfile",
            "properties",
            "java",
        ), f"{box}: {box.language}"


@pytest.mark.parametrize(
    "words",
    [
        "pip install mqfast",
        "pip install 'mqfast[broker]'",
        "pip install '.[brokers]'",
        "pip install -U '.[spark]' mqfast",
    ],
)
def test_the_checker_of_pip_finds_what_nobody_can_install(words: str) -> None:
    with pytest.raises(AssertionError):
        check_pip(shlex.split(words))
    check_pip(shlex.split("pip install '.[spark,broker]' pytest"))

"""wheels/: a release is checked before any change; the same files give the same wheel."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CHANGES = "# Changes\n\n## [0.2.0] - unreleased\n\n### Added\n\n- A thing.\n\n## [0.1.0] - 2026-01-01\n\n- Old.\n"
METADATA = (
    "Metadata-Version: 2.4\nName: mqfast\nVersion: 0.2.0\nRequires-Dist: numpy>=1.24\n"
    'Requires-Dist: lark>=1.2; extra == "broker"\nRequires-Dist: pyspark<4.4,>=4.1; extra == "spark"\n\nText\n'
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a small project with a commit, and with the program of the release."""
    top = tmp_path / "project"
    (top / "wheels").mkdir(parents=True)
    (top / "mqfast").mkdir()
    shutil.copy(ROOT / "wheels" / "release.py", top / "wheels")
    (top / "pyproject.toml").write_text('[project]\nname = "mqfast"\nversion = "0.1.0"\n')
    (top / "mqfast" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (top / "CHANGELOG.md").write_text(CHANGES)
    git = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "First"], ["tag", "v0.1.0"]):
        subprocess.run([*git, *command], cwd=top, check=True)
    return top


def checked(top: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Run the checks of a release."""
    environment = {**os.environ, "PYTHONS": sys.executable}
    command = [sys.executable, "wheels/release.py", version, "--check"]
    return subprocess.run(command, cwd=top, env=environment, capture_output=True, text=True, check=False)


def test_a_release_is_checked_and_nothing_is_changed(project: Path) -> None:
    done = checked(project, "0.2.0")
    assert done.returncode == 0, done.stderr
    assert sys.executable in done.stdout
    status = subprocess.run(["git", "status", "--porcelain"], cwd=project, capture_output=True, text=True, check=True)
    assert status.stdout == ""


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.1.0", "has a tag already"), ("0.0.9", "above 0.1.0"), ("0.1.0rc1", "above 0.1.0"), ("1.0", "expected 1.2.3")],
)
def test_a_wrong_version_is_refused(project: Path, version: str, said: str) -> None:
    done = checked(project, version)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("CHANGELOG.md", CHANGES.replace("unreleased", "2026-02-02"), "expected a tree without changes"),
        ("mqfast/__init__.py", '__version__ = "0.1.1"\n', "expected one version in all files"),
    ],
)
def test_an_unfit_tree_is_refused(project: Path, name: str, text: str, said: str) -> None:
    (project / name).write_text(text)
    done = checked(project, "0.2.0")
    assert done.returncode == 1
    assert said in done.stderr


def test_a_changelog_without_changes_is_refused(project: Path) -> None:
    (project / "CHANGELOG.md").write_text(CHANGES.replace("- A thing.\n", ""))
    git = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "commit", "-qam", "Less"], cwd=project, check=True)
    done = checked(project, "0.2.0")
    assert done.returncode == 1
    assert "expected changes below '## [0.2.0] - unreleased', found none" in done.stderr


def test_an_sdist_of_the_same_files_is_the_same(tmp_path: Path) -> None:
    digests = set()
    for number, names in enumerate((("a.py", "b.py"), ("b.py", "a.py"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"{name} = 1\n")
            os.utime(folder / name, (1_000_000 + number, 1_000_000 + number))
        sdist = folder / "mqfast-0.2.0.tar.gz"
        with tarfile.open(sdist, "w:gz") as archive:
            for name in names:
                archive.add(folder / name, f"mqfast-0.2.0/{name}")
        command = [sys.executable, str(ROOT / "wheels" / "finish.py"), str(sdist)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        digests.add(hashlib.sha256(sdist.read_bytes()).hexdigest())
        with tarfile.open(sdist) as archive:
            assert {member.mtime for member in archive} == {1_700_000_000}
    assert len(digests) == 1


def test_the_release_workflow_uses_files_and_jobs_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    jobs = workflow["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    for command in (step["run"] for step in steps if "run" in step):
        for path in re.findall(r"\b(wheels/[\w.]+|docs/site/[\w.]+|pyproject\.toml)\b", command):
            assert (ROOT / path).is_file(), path
        for target in re.findall(r"\bmake ([\w-]+)", command):
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish", "site"}
    assert jobs["site"]["needs"] == "publish"
    assert all("@" in step["uses"] for step in steps if "uses" in step)


def finished(folder: Path, names: list[str]) -> Path:
    """Return a wheel with files in this order, after the last step of a wheel."""
    wheel = folder / "mqfast-0.2.0-py3-none-any.whl"
    texts = {
        "mqfast/a.py": b"a = 1\n" * 1000,
        "mqfast/cython_runtime.cpython-311.so": b"\x7fELF \0_cython_3_3_1\0",
        "mqfast-0.2.0.dist-info/METADATA": METADATA.encode(),
        "mqfast-0.2.0.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, texts[name])
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, str(ROOT / "wheels" / "finish.py"), str(wheel)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return wheel


NAMES = [
    "mqfast/a.py", "mqfast/cython_runtime.cpython-311.so", "mqfast-0.2.0.dist-info/METADATA",
    "mqfast-0.2.0.dist-info/RECORD",
]  # fmt: skip


def test_a_wheel_names_its_components_and_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    wheels = []
    for number, names in enumerate((NAMES, NAMES[::-1])):
        (tmp_path / str(number)).mkdir()
        wheels.append(finished(tmp_path / str(number), names))
    assert len({hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels}) == 1
    with zipfile.ZipFile(wheels[0]) as archive:
        assert archive.testzip() is None
        document = json.loads(archive.read("mqfast-0.2.0.dist-info/sboms/mqfast.cdx.json"))
        record = archive.read("mqfast-0.2.0.dist-info/RECORD").decode()
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/mqfast@0.2.0"
    components = {part["name"]: part for part in document["components"]}
    assert components["Cython"]["version"] == "3.3.1"
    assert components["numpy"]["properties"] == [{"name": "requirement", "value": "numpy>=1.24"}]
    assert components["pyspark"]["scope"] == "optional"
    assert "sboms/mqfast.cdx.json,sha256=" in record
    assert len(record.splitlines()) == len(NAMES) + 1


def built_site(folder: Path, version: str) -> Path:
    """Return pages as MkDocs builds them, with the files that each version must have."""
    for name in ("index.html", "search/search_index.json", "api/index.html", "examples/index.html"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} of {version}")
    return folder


def versions_of(site: Path, version: str, built: Path) -> list[dict[str, object]]:
    """Add a version to the site by the program of the release; return what the selector lists."""
    program = ROOT / "docs" / "site" / "versions.py"
    command = [sys.executable, str(program), version, str(site), str(built)]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads((site / "versions.json").read_text())


def test_the_documentation_of_a_release_stands_beside_earlier_ones(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for version in ("0.9.0", "0.10.0", "0.11.0rc1"):
        listed = versions_of(site, version, built_site(tmp_path / version, version))
    assert [entry["version"] for entry in listed] == ["0.11.0rc1", "0.10.0", "0.9.0"]
    assert [entry["aliases"] for entry in listed] == [[], ["latest"], []]
    for version in ("0.9.0", "0.10.0", "0.11.0rc1"):
        assert (site / version / "api" / "index.html").read_text() == f"api/index.html of {version}"
    for page, target in (("index.html", "../0.10.0/"), ("api/index.html", "../../0.10.0/api/")):
        assert f'url={target}"' in (site / "latest" / page).read_text()
        assert (site / "latest" / page).parent.joinpath(target, "index.html").is_file()
    assert 'url=latest/"' in (site / "index.html").read_text()


def test_a_version_of_the_documentation_is_replaced_and_others_stay(tmp_path: Path) -> None:
    site = tmp_path / "site"
    versions_of(site, "0.1.0", built_site(tmp_path / "first", "0.1.0"))
    (site / "0.1.0" / "gone").mkdir()
    (site / "CNAME").write_text("docs.example.org")
    listed = versions_of(site, "0.1.0", built_site(tmp_path / "second", "again"))
    assert [entry["version"] for entry in listed] == ["0.1.0"]
    assert (site / "0.1.0" / "index.html").read_text() == "index.html of again"
    assert not (site / "0.1.0" / "gone").exists()
    assert (site / "CNAME").read_text() == "docs.example.org"


@pytest.mark.parametrize("name", ["search/search_index.json", "api/index.html", "examples/index.html"])
def test_documentation_without_a_part_is_not_added(tmp_path: Path, name: str) -> None:
    built = built_site(tmp_path / "built", "0.1.0")
    (built / name).unlink()
    command = [sys.executable, str(ROOT / "docs" / "site" / "versions.py"), "0.1.0", str(tmp_path / "site"), str(built)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert name in done.stderr
    assert not (tmp_path / "site" / "versions.json").exists()


def test_the_first_commands_of_a_newcomer_receive_a_message(tmp_path: Path) -> None:
    code = "import newcomer; print(*newcomer.commands(), sep='\\0'); print(newcomer.EXPECTED, end='')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "wheels"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    text, _, expected = done.stdout.rpartition("\n")
    install, use = text.split("\0")
    assert "pip install 'mqfast[broker]'" in install
    use = use.replace("mq/bin/python", sys.executable)
    # The checkout takes the place of the installed wheel.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    received = subprocess.run(
        use, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert received.stdout.strip() == expected

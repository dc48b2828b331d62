"""What the documents say is so: links, commands, code, the settings table, the exit codes.

Room: tests.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
from sampling import WHOLE

import mqfast
from mqfast.cli.arguments import subcommands
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import build_parser
from mqfast.config import DOCUMENTED_FIELDS, FIELD_OF_PROPERTY, StoreConfig
from mqfast.settings import StoreSettings

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "mqfast").rglob("*.md"),
        ROOT / "csrc" / "README.md",
    )
)
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
EVERY = pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Where a path in a document may begin; anything else is a place on somebody's machine.
_PLACES = {"var", "etc", "opt", "proc", "dev", "sys", "path"}
_EXAMPLES = "10.0.0."  # machines of a set-up
_HOSTS = {"keepachangelog.com", "semver.org", "rocketmq.apache.org", "github.com", "www.apache.org", "arrow.apache.org"}


def _script(path: Path) -> types.ModuleType:
    """Import a script of the project that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Words that this project once coined, and the standard term for each, are in one list for code and documents.
_WORDS = _script(ROOT / ".ci" / "words.py")


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as they are made for Markdown."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", text_of(document)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


_LONGEST_SENTENCE = 45
_LONGEST_LINE = 120
# Pages for users and for those who work on the code; the ledger and measured tables are records, not prose.
PROSE = [path for path in DOCUMENTS if path.name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "FORMAT.md")]
PROSE = [
    path
    for path in PROSE
    if path.parent in (ROOT, *(ROOT / name for name in ("mqfast/store", "tests", "bench", "csrc")))
]
PROSE += [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name not in ("ledger.md", "source-tree.md")]
PUBLIC_MODULES = [
    ROOT / "mqfast" / name
    for name in (
        *(
            "__init__.py",
            "aio.py",
            "config.py",
            "errors.py",
            "message.py",
            "properties.py",
            "settings/store_settings.py",
        ),
        *("store/message_store.py", "store/consumer.py", "store/reader/store_reader.py"),
    )
]


def paragraphs(text: str) -> list[str]:
    """The prose of a page, a paragraph or a list item each: no code, tables, headings, comments, measured parts."""
    text = re.sub(r"<!-- \w[^>]*written by.*?<!-- end of .*?-->", "", _BLOCK.sub("", text), flags=re.DOTALL)
    parts: list[list[str]] = [[]]
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith(("#", "|", ":::", "![", "<!--")):
            parts.append([])
        elif found := re.match(r"(?:[-*]|\d+\.) (.*)", line):
            parts.append([found[1]])
        else:
            parts[-1].append(line)
    return [" ".join(part) for part in parts if part]


def sentences(paragraph: str) -> list[str]:
    """Code and link targets count as one word; a colon or a semicolon ends a sentence, too: no false alarms."""
    paragraph = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`+[^`]*`+", "X", paragraph))
    return re.split(r"(?<=[.!?:;])\s+", paragraph)


def docstrings(module: Path) -> list[str]:
    """The docstrings of a module, its public classes and their public functions."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    found = [ast.get_docstring(tree)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            found.append(ast.get_docstring(node))
    return [text for text in found if text]


def complaints(paragraph: str) -> list[str]:
    low = re.sub(r"`+[^`]*`+", "X", paragraph).lower()
    found = [f"{word!r}: {term}" for word, term in _WORDS.WORDS.items() if re.search(rf"\b{word}\b", low)]
    return found + [
        f"a sentence of {len(sentence.split())} words: {sentence[:80]}"
        for sentence in sentences(paragraph)
        if len(sentence.split()) > _LONGEST_SENTENCE
    ]


def test_the_checker_of_the_words_finds_what_it_looks_for() -> None:
    assert complaints("Short. " + "word " * 46) != []
    assert complaints("Both run turn about.") != []
    assert complaints("The call `turn about` is code; " + "a word " * 15 + ": " + "a word " * 15) == []
    assert paragraphs("# Head\n\none\ntwo\n\n- three\n- four\n\n| a |\n\n```\ncode\n```\n") == [
        "one two",
        "three",
        "four",
    ]


@pytest.mark.parametrize("document", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_words_of_the_documents(document: Path) -> None:
    """Standard terms and sentences of a length that can be read once; lines that an editor shows whole."""
    text = text_of(document)
    assert [why for paragraph in paragraphs(text) for why in complaints(paragraph)] == []
    text = re.sub(r"<!-- measured:.*?<!-- end of measured -->", "", _BLOCK.sub("", text), flags=re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > _LONGEST_LINE and not line.startswith("|")]
    assert [line for line in long if " " in line.strip().lstrip("- ")] == []


@pytest.mark.parametrize("module", PUBLIC_MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_words_of_the_public_docstrings(module: Path) -> None:
    parts = [part for text in docstrings(module) for part in text.split("\n\n") if not part.startswith("    ")]
    assert [why for part in parts for why in complaints(part)] == []


def test_the_documents_are_there() -> None:
    pages = (
        "architecture",
        "operations",
        "tutorial",
        "durability",
        "performance",
        "spark/start",
        "api",
        "dev/notebook",
    )
    expected = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mqfast/store/FORMAT.md")
    assert {*expected, *(f"docs/{page}.md" for page in pages)} <= set(NAMES)


@EVERY
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in _LINK.findall(_BLOCK.sub("", text_of(document))):
        if target.startswith("https://"):
            assert target.split("/")[2] in _HOSTS, target
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), f"{document.name}: {target}"
        assert file.is_relative_to(ROOT), f"{document.name}: {target} leaves the project"
        if anchor:
            assert anchor in anchors(file), f"{document.name}: {target}"


@EVERY
def test_no_document_names_a_place_on_one_machine(document: Path) -> None:
    text = text_of(document)
    for found in re.finditer(r"(?<![\w.:/~*)>`-])/(\w+)/\w", text):
        assert found[1] in _PLACES, f"{document.name}: {text[found.start() : found.end() + 30]!r}"
    assert "../.." not in text
    for host in re.findall(r"https?://([^/\s)]+)", text):
        assert host in _HOSTS or host.startswith(_EXAMPLES), f"{document.name}: {host}"


@EVERY
def test_files_in_code_marks_exist(document: Path) -> None:
    """``name.pyx`` names a file of the project; a file that was renamed is noticed."""
    known = {
        path.name for kind in (".ci", "mqfast", "csrc", "tests", "docs", "bench") for path in (ROOT / kind).rglob("*.*")
    } | {path.name for path in ROOT.iterdir()}
    for name in re.findall(r"`(?:[\w./]*/)?(\w+\.(?:pyx|pxd|py|c))`", text_of(document)):
        assert name in known, f"{document.name}: {name}"


def test_the_folders_of_the_architecture_page_are_the_folders_of_the_package() -> None:
    picture = _BLOCK.findall(text_of(ROOT / "docs" / "architecture.md"))[0][1]
    for path in sorted((ROOT / "mqfast").glob("*/__init__.py")):
        if path.parent.name != "bench":
            assert f"{path.parent.name}/" in picture, f"docs/architecture.md does not show mqfast/{path.parent.name}"


def test_the_source_tree_is_current() -> None:
    module = _script(ROOT / "docs" / "source_tree.py")
    assert text_of(ROOT / "docs" / "source-tree.md") == module.page(), "run: python docs/source_tree.py"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", text_of(ROOT / "Makefile"), re.MULTILINE))


@EVERY
def test_commands_exist(document: Path) -> None:
    text = text_of(document)
    in_blocks = "\n".join(code for language, code in _BLOCK.findall(text) if language in ("", "sh"))
    for line in [*in_blocks.splitlines(), *re.findall(r"`([^`\n]+)`", text)]:
        words = line.split("#")[0].split()
        if words[:1] == ["make"] and len(words) == 2:
            assert words[1] in make_targets(), line
        if words[:2] in (["mqfast", "doctor"], ["mqfast", "bench"]) and len(words) > 2 + (words[1] == "bench"):
            build_parser().parse_args(words[1:])
        if words[:2] == ["mqfast", "store"] and len(words) > 2 and "|" not in line:
            assert words[2] in subcommands(subcommands(build_parser())["store"]), line
            if len(words) > 3:
                build_parser().parse_args([word.strip("'") for word in words[1:]])
        if words[:2] == ["python", "-m"] and len(words) > 2 and words[2].startswith("mqfast"):
            assert importlib.util.find_spec(words[2]) is not None, line


def test_the_installed_command_is_the_one_that_is_tested() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    assert project["scripts"] == {"mqfast": "mqfast.cli.main:main"}
    assert project["version"] == mqfast.__version__
    assert f"[{mqfast.__version__}]" in text_of(ROOT / "CHANGELOG.md")


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md", "docs/performance.md"])
def test_the_code_in_the_documents_runs(name: str, tmp_path: Path) -> None:
    blocks = [code for language, code in _BLOCK.findall(text_of(ROOT / name)) if language == "python"]
    assert blocks
    program = blocks[0] if name == "README.md" else "\n".join(blocks)  # the next one needs a broker
    ast.parse(program)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"],
        capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if name == "README.md":
        assert done.stdout == "0 b'two teapots'\n"


def test_the_first_screen_of_the_readme_says_what_matters_first() -> None:
    """What is deleted, what survives, disk use, one writer, damage; then what a fresh machine needs, time and disk."""
    screen = "\n".join(text_of(ROOT / "README.md").splitlines()[:75])  # a screen and a half
    for words in ("Retention is off", 'stats()["retention"]', "SYNC_FLUSH", "80 MB", 'profile="broker"', "StoreLocked"):
        assert words in screen, words
    for words in ('on_damage="stop"', "make demo", "make test", "Python 3.11", "minutes", "GB", "C compiler"):
        assert words in screen, words
    speed = text_of(ROOT / "README.md").split("## Speed")[1].split("\n## ")[0]
    assert len(re.findall(r"^\| (?!2 cores)[\w`]", speed, re.MULTILINE)) == 6


def test_the_code_of_the_deployment_runs(tmp_path: Path) -> None:
    """Each Python block by itself, as a program in a directory of its own; the unit file by systemd, where it is."""
    text = text_of(ROOT / "docs" / "deployment.md")
    blocks = [code for language, code in _BLOCK.findall(text) if language == "python"]
    assert len(blocks) == 5
    for number, code in enumerate(blocks):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "program.py").write_text(code)
        done = subprocess.run(
            [sys.executable, "program.py"], env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, cwd=place, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{code}\n{done.stderr}"
        assert ("[1]" in done.stdout) == ("multiprocessing" in code)
    unit = next(code for language, code in _BLOCK.findall(text) if language == "ini")
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(unit)
    assert parsed["Service"]["KillSignal"] == "SIGTERM"
    assert parsed["Service"]["KillMode"] == "mixed"
    if shutil.which("systemd-analyze") is not None:
        (tmp_path / "orders.service").write_text(unit.replace("python3", sys.executable))
        checked = subprocess.run(
            ["systemd-analyze", "verify", str(tmp_path / "orders.service")],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert "Unknown" not in checked.stderr, checked.stderr


def test_an_asgi_application_stores_as_the_deployment_says(tmp_path: Path) -> None:
    text = text_of(ROOT / "docs" / "deployment.md")
    code = next(code for language, code in _BLOCK.findall(text) if language == "python" and "lifespan" in code)
    names: dict[str, Any] = {}
    exec(compile(code.replace('"orders")', f"{str(tmp_path / 'orders')!r})", 1), "deployment.md", "exec"), names)
    app = types.SimpleNamespace()

    async def serve() -> object:
        async with names["lifespan"](app):
            return (await names["take_order"](app, b"one")).status.name

    assert asyncio.run(serve()) == "PUT_OK"
    with mqfast.StoreReader(tmp_path / "orders") as reader:
        assert reader.get("orders", 0, 0).bodies() == [b"one"]


def test_the_settings_table_is_current() -> None:
    writer = _script(ROOT / "docs" / "settings_table.py")
    document = text_of(ROOT / "docs" / "settings.md")
    assert writer.renewed(document) == document, "run: python docs/settings_table.py"
    page = (ROOT / "docs" / "broker.md").read_text(encoding="utf-8")
    assert writer.renewed_live(page) == page, "run: python docs/settings_table.py"
    for setting in mqfast.StoreConfig().describe():
        assert f"| `{setting.field}`" in document


def test_the_exit_codes_are_the_documented_ones() -> None:
    section = text_of(ROOT / "docs" / "operations.md").split("## Exit codes of the command")[1].split("\n## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)} == {
        int(code) for code in ExitCode
    }


def test_the_types_of_the_settings_are_current() -> None:
    """``StoreSettings`` has our names and RocketMQ's, with the types of the table, and nothing else."""
    writer = _script(ROOT / "docs" / "settings_table.py")
    source = text_of(writer.TYPES)
    assert writer.renewed_types(source) == source, "run: python docs/settings_table.py"
    names = set(StoreSettings.__annotations__)
    assert names == {*DOCUMENTED_FIELDS, *FIELD_OF_PROPERTY, "brokerIP1", "listenPort"}
    for name, value in {s.field: s.value for s in StoreConfig().describe() if s.value is not None}.items():
        StoreConfig.from_kwargs(**{name: value})


def test_every_figure_of_stats_is_documented(tmp_path: Path) -> None:
    section = text_of(ROOT / "docs" / "operations.md").split("## Watching")[1].split("\n## ")[0]
    names = set(re.findall(r"`(\w+)`", section))
    with mqfast.open(tmp_path / "store") as store:
        assert set(store.stats()) <= names


def test_the_api_reference_has_every_public_name() -> None:
    shown = re.findall(r"^::: mqfast\.(\w+)$", text_of(ROOT / "docs" / "api.md"), re.MULTILINE)
    elsewhere = mqfast._OF_CLIENTS | mqfast._OF_ERRORS  # as mqfast.client.X, and with mqfast.errors
    assert sorted(shown) == sorted(set(mqfast.__all__) - {"__version__"} - elsewhere)
    for name, options in re.findall(
        r"^::: mqfast\.(\w+)\n((?: +.*\n)*)", text_of(ROOT / "docs" / "api.md"), re.MULTILINE
    ):
        listed = re.search(r"members: \[(.+)\]|members:\n((?: +- \w+\n)+)", options)
        for member in re.findall(r"\w+", "".join(filter(None, listed.groups()))) if listed else ():
            known = getattr(getattr(mqfast, name), "__dataclass_fields__", ())
            assert hasattr(getattr(mqfast, name), member) or member in known, f"{name}.{member}"


def load(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_checkout_become_links_of_the_site() -> None:
    hooks = load(ROOT / "docs" / "site" / "hooks.py")
    for name in hooks.PAGES:
        assert (ROOT / name).is_file(), name
    assert (
        hooks.relinked("[a](docs/broker.md#limits) [b](LICENSE)", "index.md") == "[a](broker.md#limits) [b](license.md)"
    )
    assert hooks.relinked("[a](../mqfast/store/FORMAT.md)", "broker.md") == "[a](format.md)"
    assert hooks.relinked("[a](../docs/dev/ledger.md) [b](#x)", "dev/bench.md") == "[a](ledger.md) [b](#x)"


def test_every_page_is_in_the_menu_of_the_site() -> None:
    hooks = load(ROOT / "docs" / "site" / "hooks.py")
    menu = re.findall(
        r"^ +- [^:]+: (\S+\.md)$|^  - Home: (\S+)$", text_of(ROOT / "docs" / "site" / "mkdocs.yml"), re.MULTILINE
    )
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} | set(hooks.PAGES.values())
    assert {page for found in menu for page in found if page} == pages


@pytest.mark.sampled
@pytest.mark.skipif(not WHOLE, reason="make docs builds the site before make test in CI")
def test_the_site_builds_and_a_broken_link_is_an_error(tmp_path: Path) -> None:
    """As ``make docs`` builds it; needs the packages of the extra ``docs``."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="make docs installs what builds the site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, str(ROOT / "docs" / "site" / "mkdocs.yml"), "--site-dir", str(tmp_path / "site")],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    for name in set(mqfast.__all__) - {"__version__", "errors"}:
        assert any(f"{home}.{name}" in page for home in ("mqfast", "mqfast.client", "mqfast.errors")), name
    assert "A producer with a bound topic, queue and tags" in page  # a docstring of a compiled module
    assert "mqfast.errors.DiskFull" in page
    assert page.count("born_timestamp") >= 3  # the parameters of put, from its stub
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](two.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nvalidation: { links: { not_found: warn } }\n")
    done = subprocess.run(
        [*command, str(tmp_path / "mkdocs.yml")],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode != 0

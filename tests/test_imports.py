"""Who may import whom: read out of the sources, so that a wrong edge is found before it is built.

Room: tests. ``docs/architecture.md`` gives the reasons.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mqfast"
GROUND = frozenset(
    [
        *(f"mqfast.{name}" for name in ("errors", "config", "message", "properties", "retention_rules")),
        *("mqfast.util", "mqfast.settings"),
        *(f"mqfast.{room}.{path.stem}" for room in ("util", "settings") for path in (PACKAGE / room).glob("[!_]*.py")),
    ]
)
_CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\b|c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*))", re.MULTILINE)

# What the network needs beyond the standard library, and in which rooms: the extra mqfast[broker].
OF_THE_NETWORK = {
    "msgspec": (
        "mqfast.broker",
        "mqfast.cli.importing",
        "mqfast.client",
        "mqfast.console",
        "mqfast.grpc",
        "mqfast.mcp",
        "mqfast.namesrv",
        "mqfast.remoting",
    ),
    "starlette": ("mqfast.console",),
    "uvicorn": ("mqfast.console",),
    "jinja2": ("mqfast.console",),
    "markupsafe": ("mqfast.console",),
    "mcp": ("mqfast.mcp",),
    "lark": ("mqfast.broker.filter",),
    "yaml": ("mqfast.broker.acl",),
    "lz4.frame": ("mqfast.client.decompression", "mqfast.client.producer.encode"),
    "zstandard": ("mqfast.client.decompression", "mqfast.client.producer.encode"),
}


def _rooms_of(library: str) -> tuple[str, ...]:
    """The rooms that may import a library, or a module of one."""
    return OF_THE_NETWORK.get(library) or OF_THE_NETWORK.get(library.split(".")[0], ())


# Adapters: the library that each one is for, and what an adapter of several files imports of itself.
OF_THE_ADAPTERS: dict[str, tuple[str, ...]] = {
    "mqfast.contrib.otel": ("opentelemetry",),
    "mqfast.contrib.metrics": ("prometheus_client",),
    "mqfast.contrib.kombu": ("kombu",),
}
WITHIN_ADAPTERS: dict[str, tuple[str, ...]] = {"mqfast.contrib.kombu": ("mqfast.contrib.kombu_readers",)}


class Edge(NamedTuple):
    """One import: who, what, and whether it runs when the importer is imported."""

    importer: str
    imported: str
    line: int
    at_import: bool
    typing_only: bool = False

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported} (line {self.line})"


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _python_edges(path: Path) -> Iterator[Edge]:
    name = module_name(path)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    later: set[int] = set()
    for_types: set[int] = set()
    for node in ast.walk(tree):
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if typing_only or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            later.update(id(child) for child in ast.walk(node))
        if typing_only:
            for_types.update(id(child) for child in ast.walk(node))
    for node in ast.walk(tree):
        at_import, typing_only = id(node) not in later, id(node) in for_types
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Edge(name, alias.name, node.lineno, at_import, typing_only)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides its edge"
            for alias in node.names:
                # ``from mqfast import properties`` names a module, ``from mqfast.errors import DiskFull`` does not.
                inner = f"{node.module}.{alias.name}"
                yield Edge(name, inner if is_module(inner) else str(node.module), node.lineno, at_import, typing_only)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or any(path.with_suffix(kind).exists() for kind in (".py", ".pyx"))


def _cython_edges(path: Path) -> Iterator[Edge]:
    text = path.read_text(encoding="utf-8")
    for found in _CYTHON_IMPORT.finditer(text):
        line = text.count("\n", 0, found.start(1 if found[1] else 2)) + 1
        at_import = not found[0].lstrip("\n").startswith((" ", "\t"))
        if found[1]:
            rest = text[found.end() :].split("\n", 1)[0].split("#")[0]
            names = re.findall(r"\w+", re.sub(r"\bas\s+\w+", "", rest))
            inner = [f"{found[1]}.{name}" for name in names if found[1] == "mqfast" and is_module(f"mqfast.{name}")]
            for name in inner or [found[1]]:
                yield Edge(module_name(path), name, line, at_import)
        else:
            for name in found[2].split(","):
                yield Edge(module_name(path), name.strip(), line, at_import)


def edges() -> list[Edge]:
    found: list[Edge] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        found += _python_edges(path)
    for kind in ("*.pyx", "*.pxd"):
        for path in sorted(PACKAGE.rglob(kind)):
            found += _cython_edges(path)
    return found


EDGES = edges()


def assert_none(offending: list[Edge], rule: str) -> None:
    assert not offending, f"{rule}:\n" + "\n".join(map(str, offending))


def is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def test_the_reader_of_imports_sees_all_kinds_of_them() -> None:
    found = {(edge.importer, edge.imported) for edge in EDGES}
    assert ("mqfast.store.message_store", "mqfast.store.put.put_message") in found
    assert ("mqfast.store.put.put_message", "mqfast.store.core") in found
    assert ("mqfast.store.core", "mqfast.store.log.commit_log") in found
    assert ("mqfast.store.put.put_message", "mqfast.properties") in found
    assert ("mqfast.store.log.commit_log", "os") in found
    assert ("mqfast.config", "mqfast.errors") in found
    assert len({edge.importer for edge in EDGES}) > 30


def test_the_ground_floor_imports_nothing_of_ours_but_itself() -> None:
    offending = [e for e in EDGES if e.importer in GROUND and is_in(e.imported, "mqfast") and e.imported not in GROUND]
    assert_none(offending, "the ground floor imports only itself")


def test_errors_and_results_import_nothing_of_ours() -> None:
    alone = ("mqfast.errors", "mqfast.store.base.results")
    assert_none([e for e in EDGES if e.importer in alone and is_in(e.imported, "mqfast")], f"{alone} stand alone")


@pytest.mark.parametrize(
    "stranger", ["asyncio", "socket", "selectors", "pyspark", "rich", "mqfast.remoting", "mqfast.aio"]
)
def test_the_store_knows_nothing_of_networks(stranger: str) -> None:
    offending = [e for e in EDGES if is_in(e.importer, "mqfast.store") and is_in(e.imported, stranger)]
    # MessageStore.aput and Consumer.follow hand over to the adapter, inside the function.
    offending = [e for e in offending if not (e.imported == "mqfast.aio" and not e.at_import)]
    assert_none(offending, f"store imports no {stranger}")


def test_gets_and_puts_know_the_core_and_not_each_other() -> None:
    rooms = ("mqfast.store.put", "mqfast.store.get")
    for one, other in (rooms, rooms[::-1]):
        assert_none([e for e in EDGES if is_in(e.importer, one) and is_in(e.imported, other)], f"{one} not {other}")
    assert_none(
        [e for e in EDGES if e.importer == "mqfast.store.core" and any(is_in(e.imported, room) for room in rooms)],
        "the core knows neither",
    )


@pytest.mark.parametrize("room", ["mqfast.remoting", "mqfast.namesrv", "mqfast.grpc"])
def test_the_network_knows_nothing_of_the_store(room: str) -> None:
    offending = [e for e in EDGES if is_in(e.importer, room) and is_in(e.imported, "mqfast.store")]
    assert_none(offending, f"{room} imports no store")
    others = ("mqfast.errors", "mqfast.settings", "mqfast.util", "mqfast.remoting", room)
    offending = [
        e
        for e in EDGES
        if is_in(e.importer, room)
        and is_in(e.imported, "mqfast")
        and not any(is_in(e.imported, other) for other in others)
    ]
    assert_none(offending, f"{room} imports {', '.join(others)} only")


def test_a_client_knows_of_the_store_how_records_look_and_no_more() -> None:
    offending = [e for e in EDGES if is_in(e.importer, "mqfast.client") and is_in(e.imported, "mqfast.store")]
    assert_none([e for e in offending if not is_in(e.imported, "mqfast.store.record")], "client imports records alone")
    others = [e for e in EDGES if is_in(e.importer, "mqfast.client") and is_in(e.imported, "mqfast")]
    rooms = ("mqfast.client", "mqfast.remoting", "mqfast.store.record", *GROUND)
    assert_none([e for e in others if not any(is_in(e.imported, room) for room in rooms)], f"client: {rooms} only")


def test_adapters_know_the_client_and_each_one_its_own_library() -> None:
    rooms = ("mqfast.contrib", "mqfast.compat")
    inside = [e for e in EDGES if any(is_in(e.importer, room) for room in rooms)]
    ours = [e for e in inside if is_in(e.imported, "mqfast")]
    known = ("mqfast.client", *GROUND)
    offending = [e for e in ours if not any(is_in(e.imported, one) for one in known) and e.imported != e.importer]
    assert_none([e for e in offending if e.imported not in WITHIN_ADAPTERS.get(e.importer, ())], f"adapters: {known}")
    above = [e for e in EDGES if any(is_in(e.imported, room) for room in rooms) and e not in inside]
    assert_none(above, "nobody imports an adapter")


def test_replication_knows_the_store_and_no_remoting() -> None:
    others = [e for e in EDGES if is_in(e.importer, "mqfast.ha") and is_in(e.imported, "mqfast")]
    rooms = ("mqfast.ha", "mqfast.store", *GROUND)
    assert_none([e for e in others if not any(is_in(e.imported, room) for room in rooms)], f"ha: {rooms} only")
    strangers = [e for e in EDGES if is_in(e.importer, "mqfast.store") and is_in(e.imported, "mqfast.ha")]
    assert_none(strangers, "the store knows nothing of replication")


def test_what_a_client_asks_for_is_written_without_io() -> None:
    plain = tuple(f"mqfast.client.{name}" for name in ("values", "net.request_steps", "route.route_table"))
    assert_none([e for e in EDGES if e.importer in plain and e.imported in ("asyncio", "socket", "time")], "no I/O")


def test_a_connection_without_io_knows_no_loop() -> None:
    plain = tuple(f"mqfast.remoting.{name}" for name in ("codec", "command", "connection", "proxy_protocol", "tls"))
    offending = [e for e in EDGES if e.importer in (*plain, "mqfast.namesrv.tables")]
    assert_none([e for e in offending if e.imported in ("asyncio", "socket", "time")], "these do no I/O")


def test_what_is_for_tests_stands_above_all_and_its_face_loads_nothing() -> None:
    above = [e for e in EDGES if is_in(e.imported, "mqfast.testing") and not is_in(e.importer, "mqfast.testing")]
    assert_none([e for e in above if not is_in(e.importer, "mqfast.cli") or e.at_import], "only the cli, in a function")
    faces = ("mqfast.testing", "mqfast.testing.plugin")
    heavy = [e for e in EDGES if e.importer in faces and is_in(e.imported, "mqfast") and not e.typing_only]
    assert_none([e for e in heavy if e.at_import], "the names and the plug-in load the rest when it is used")


def test_nothing_of_the_product_imports_the_simulation() -> None:
    offending = [e for e in EDGES if is_in(e.imported, "mqfast.sim") and not is_in(e.importer, "mqfast.sim")]
    assert_none(offending, "the simulation runs the product, not the other way round")


def test_numpy_comes_only_when_numpy_output_is_asked_for() -> None:
    assert_none([e for e in EDGES if is_in(e.imported, "numpy") and e.at_import], "numpy is imported inside functions")


def test_the_console_knows_the_client_and_only_its_commands_know_the_console() -> None:
    within = ("mqfast.console", "mqfast.mcp")
    edges = [e for e in EDGES if any(is_in(e.importer, room) for room in within) and is_in(e.imported, "mqfast")]
    known = (*within, "mqfast.client", "mqfast.remoting", *GROUND)
    assert_none([e for e in edges if not any(is_in(e.imported, room) for room in known)], f"console: {known} only")
    assert_none([e for e in edges if is_in(e.importer, "mqfast.console") and is_in(e.imported, "mqfast.mcp")], "below")
    users = [e for e in EDGES if any(is_in(e.imported, room) for room in within)]
    users = [e for e in users if not any(is_in(e.importer, room) for room in within)]
    assert_none([e for e in users if e.importer != "mqfast.cli.console" or e.at_import], "the commands, in functions")


def test_nobody_imports_the_shell_around_the_engine() -> None:
    shell = ("mqfast.__main__", "mqfast.cli", "mqfast.demo", "mqfast.demo_network", "mqfast.bench")
    offending = [
        e
        for e in EDGES
        if any(is_in(e.imported, room) for room in shell) and not any(is_in(e.importer, room) for room in shell)
    ]
    assert_none(offending, "cli, demo and bench are ends of the graph")


def test_the_core_needs_only_the_standard_library() -> None:
    known = {*sys.stdlib_module_names, "mqfast", "cpython", "libc", "cython"}
    optional = {"numpy", "rich", "pyarrow"}
    core = [e for e in EDGES if not is_in(e.importer, "mqfast.spark")]
    core = [e for e in core if not any(is_in(e.importer, room) for room in _rooms_of(e.imported))]
    core = [e for e in core if (e.importer, e.imported) != ("mqfast.testing.plugin", "pytest")]
    core = [e for e in core if (e.importer, e.imported) != ("mqfast.sim.threads", "greenlet")]
    core = [e for e in core if e.imported.split(".")[0] not in OF_THE_ADAPTERS.get(e.importer, ())]
    offending = [e for e in core if e.imported.split(".")[0] not in known | optional]
    offending += [e for e in core if e.imported.split(".")[0] in optional and e.at_import]
    assert_none(offending, "only the standard library is imported, numpy, rich and pyarrow inside functions")


def test_spark_stays_in_its_room() -> None:
    strangers = {"pyspark", "py4j", "pyarrow", "pandas"}
    outside = [e for e in EDGES if not is_in(e.importer, "mqfast.spark")]
    # The messages of a get become a pyarrow.RecordBatch, and an export a Parquet file, where somebody asks for one.
    allowed = {"mqfast.store.get.get_columns": ("pyarrow",), "mqfast.cli.transfer": ("pyarrow", "pyarrow.parquet"),
               "mqfast.cli.admin.letters": ("pyarrow", "pyarrow.parquet")}  # fmt: skip
    columns = [e for e in outside if e.imported in allowed.get(e.importer, ())]
    assert_none([e for e in columns if e.at_import], "pyarrow is imported inside the function")
    others = [e for e in outside if e not in columns]
    assert_none(
        [e for e in others if e.imported.split(".")[0] in strangers],
        "only mqfast.spark imports these, and to_arrow() and an export to Parquet pyarrow",
    )
    assert_none([e for e in outside if is_in(e.imported, "mqfast.spark")], "nobody imports mqfast.spark")
    known = {*sys.stdlib_module_names, "mqfast", "pyspark", "py4j", "pyarrow", "numpy", "cpython", "libc", "cython"}
    inside = [e for e in EDGES if is_in(e.importer, "mqfast.spark")]
    assert_none([e for e in inside if e.imported.split(".")[0] not in known], "Spark, Arrow and numpy only")
    # What is planned and chosen can be tested, and understood, without Spark.
    plain = [f"mqfast.spark.{name}" for name in ("options", "plan", "selection", "offsets", "groups", "staging")]
    assert_none(
        [e for e in inside if e.importer in plain and e.imported.split(".")[0] in strangers], "these know no Spark"
    )


def test_modules_import_each_other_in_one_direction() -> None:
    """No cycle of modules; imports for types, imports within functions and cimports count as well."""
    ours = {module_name(path) for kind in ("*.py", "*.pyx") for path in PACKAGE.rglob(kind)}
    graph: dict[str, set[str]] = {}
    for edge in EDGES:
        if edge.imported in ours and edge.imported != edge.importer:
            graph.setdefault(edge.importer, set()).add(edge.imported)
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, "circle: " + " -> ".join([*way[way.index(name) :], name])
        if name not in done:
            for following in sorted(graph.get(name, ())):
                visit(following, (*way, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


# From below: a folder imports only what stands before it. Files beside the folders have a place of their own.
STORE_FLOORS = (
    "base", "record", "queues", "index", "meta", "log", "dispatch", "core", "put", "get", "engine", "reader", "check",
    "raw_log", "follow", "consumer", "file_sizes", "opening", "message_store", "_os",
)  # fmt: skip
BROKER_FLOORS = (
    "config", "metadata", "acl", "metrics", "filter", "context", "client_manager", "send", "fast", "idempotence",
    "pull", "transaction", "schedule", "admin", "pop", "grpc", "replication", "parts", "server",
)  # fmt: skip
SPARK_FLOORS = (
    "offsets", "plan", "options", "schema", "backend", "identity", "bodies", "columns", "groups", "selection",
    "row_encoder", "rows", "local", "durable_files", "archive_manifest", "archived_rows", "remote", "backends",
    "pushdown", "partitions", "archive_then_live", "stream", "stream_of_stores", "source", "autoload", "jobs",
    "explain", "listener", "threads", "demo_cluster", "demo",
)  # fmt: skip
KNOWN_BACK = {
    # A salvage puts the records that it finds into a new store.
    ("mqfast.store.check.salvage", "mqfast.store.message_store"),
    # A broker with failover builds a whole broker, as master or as slave.
    ("mqfast.broker.replication.failover_broker", "mqfast.broker.server"),
}
# Folders of a folder that have a place of their own.
INNER_FLOORS = ("mqfast.broker.metadata.client_manager",)


def floor_of(name: str, package: str) -> str:
    """The folder of a module in a package, or the name of a file that lies in no folder."""
    for inner in INNER_FLOORS:
        if is_in(name, inner) and is_in(inner, package):
            return inner.rpartition(".")[2]
    return name.removeprefix(f"{package}.").split(".")[0] if name.startswith(f"{package}.") else ""


@pytest.mark.parametrize(
    ("package", "floors"),
    [("mqfast.store", STORE_FLOORS), ("mqfast.broker", BROKER_FLOORS), ("mqfast.spark", SPARK_FLOORS)],
)
def test_the_folders_of_a_package_form_no_cycle(package: str, floors: tuple[str, ...]) -> None:
    """Imports and cimports, those inside functions too, but not those for types alone."""
    folders = {e.importer for e in EDGES if e.importer.startswith(f"{package}.")}
    assert {floor_of(name, package) for name in folders} <= set(floors)
    offending = []
    for edge in EDGES:
        above, below = floor_of(edge.importer, package), floor_of(edge.imported, package)
        if above in floors and below in floors and not edge.typing_only:
            known = (edge.importer, edge.imported) in KNOWN_BACK
            if floors.index(below) > floors.index(above) and not known:
                offending.append(edge)
    assert_none(offending, f"a folder of {package} imports only those before it, {' < '.join(floors)}")


def printed_by(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=300, check=True
    )
    return done.stdout.strip()


def test_all_public_names_of_the_store_together_bring_neither_numpy_nor_asyncio() -> None:
    heavy = "{'numpy', 'asyncio', 'rich', 'socket', 'argparse'}"
    names = "[getattr(mqfast, name) for name in set(mqfast.__all__) - mqfast._OF_CLIENTS]"
    script = f"import sys, mqfast; {names}; print(*sorted({heavy} & set(sys.modules)))"
    assert printed_by(script) == ""


def test_importing_the_adapter_brings_no_spark() -> None:
    script = "import sys, mqfast.spark; print(*sorted({'pyspark', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules)))"
    assert printed_by(script) == ""

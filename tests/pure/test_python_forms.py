"""Clients without compiled code: the same results as with compiled code, and an error for what must be compiled.

Room: tests. Both forms are never in one process, so each test starts processes. ``make test-pure`` runs the suites of
the client and of the protocol in the Python form.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import BrokerProcess
from sampling import WHOLE

from mqfast.pure.form import PYTHON_FORMS

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def run(*arguments: str, pure: bool = True, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("MQFAST_PURE", "MQFAST_WHOLE")}
    if pure:
        env["MQFAST_PURE"] = "1"
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s
    )


def say(program: str) -> str:
    done = run("-c", program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_forms_have_the_same_results(seed: int) -> None:
    count = "20000" if WHOLE else "250"
    compiled, python = (run(str(HERE / "results.py"), str(seed), count, pure=pure) for pure in (False, True))
    assert (compiled.returncode, python.returncode) == (0, 0), compiled.stderr + python.stderr
    ours, theirs = python.stdout.splitlines(), compiled.stdout.splitlines()
    assert len(theirs) > 10_000
    if ours != theirs:
        pytest.fail("\n".join(list(difflib.unified_diff(theirs, ours, "compiled", "python", n=0, lineterm=""))[:20]))


def test_a_client_imports_no_compiled_code() -> None:
    program = """
import sys, mqfast, mqfast.client
for name in dir(mqfast.client):
    getattr(mqfast.client, name)
for name, module in sorted(sys.modules.items()):
    if name.startswith("mqfast."):
        print(name, getattr(module, "__file__", None))
"""
    files = dict(line.split(" ", 1) for line in say(program).splitlines())
    assert [name for name, file in files.items() if not file.endswith(".py")] == []
    assert {name for name, file in files.items() if "/pure/" in file} >= set(PYTHON_FORMS)


def test_compiled_code_is_refused_with_the_way_to_get_it() -> None:
    program = """
import mqfast
for what in ("mqfast.open('nowhere')", "mqfast.StoreReader", "__import__('mqfast.broker.server')", "mqfast.repair"):
    try:
        eval(what)
    except ImportError as error:
        print(error)
"""
    said = say(program).splitlines()
    assert len(said) == 4
    for line in said:
        assert re.match(r"mqfast\.store\.\S+ is compiled code, and MQFAST_PURE excludes compiled code\. ", line)
        assert "install a wheel for this system and Python version, or build one" in line


def test_a_command_that_needs_compiled_code_says_so_in_one_line() -> None:
    done = run("-m", "mqfast.cli", "up")
    assert (done.returncode != 0, done.stdout, done.stderr.count("\n")) == (True, "", 1)
    assert done.stderr.startswith("mqfast: mqfast.store.base.os_api is compiled code, and ")


def test_other_names_are_not_found_as_usual() -> None:
    assert say("import mqfast\ntry:\n import mqfast.nothing\nexcept ModuleNotFoundError as e: print(e)") == (
        "No module named 'mqfast.nothing'\n"
    )


def names_of(tree: ast.Module) -> dict[str, set[str]]:
    """The public names of a module, and those of each class."""
    found: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                name for item in node.body for name in _bound(item) if not name.startswith("_") or name == "__init__"
            }
        else:
            found.update({name: set() for name in _bound(node)})
    return {name: inside for name, inside in found.items() if not name.startswith("_")}


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


@pytest.mark.parametrize("module", sorted(PYTHON_FORMS))
def test_each_form_has_the_names_of_the_stub(module: str) -> None:
    """What a type checker reads of the compiled module is there in the Python form, for both are checked by it."""
    stub = names_of(ast.parse((ROOT / (module.replace(".", "/") + ".pyi")).read_text()))
    program = f"""
import importlib
module = importlib.import_module({module!r})
instance_names = lambda kind: {{*dir(kind), *getattr(kind, "__annotations__", {{}})}}
for name, value in vars(module).items():
    if not name.startswith("_"):
        print(name, *(instance_names(value) if isinstance(value, type) else ()))
"""
    there = {name: set(inside) for name, *inside in map(str.split, say(program).splitlines())}
    source = (ROOT / "mqfast" / "pure" / PYTHON_FORMS[module]).read_text()
    for name, inside in stub.items():
        assert name in there, f"{module}.{name}"
        missing = {one for one in inside - there[name] if f"self.{one}" not in source}
        assert not missing, f"{module}.{name}: {missing}"


CLIENTS = """
import sys, threading
from mqfast import AdminClient, Message, Producer, PullConsumer, PushConsumer, SimpleConsumer
address = sys.argv[1]
with Producer("makers", address) as producer:
    sent = {producer.send("orders", b"%d" % n, tags="new", keys="k").msg_id for n in range(20)}
    three = [Message("orders", b"batch", properties={"a": "\u00e9"}) for _ in range(3)]
    sent |= {*producer.send_batch(three).msg_ids, producer.send("orders", b"long" * 5000).msg_id}
received, every = set(), threading.Event()
consumer = PushConsumer("pushed", address, from_where="earliest")
@consumer.on("orders")
def work(message):
    received.add(message.msg_id)
    if received >= sent:
        every.set()
with consumer:
    print("pushed", every.wait(30), len(received), len(sent))
with PullConsumer("pulled", address, topics="orders", from_where="earliest") as consumer:
    bodies = []
    while len(bodies) < len(sent):
        bodies += [message.body for message in consumer.poll(timeout_s=5)]
    print("pulled", len(bodies), b"long" * 5000 in bodies)
with SimpleConsumer("popped", address, topics="orders", from_where="earliest") as consumer:
    popped = set()
    while popped != sent:
        for message in consumer.receive(invisible_s=60):
            popped.add(message.msg_id)
            consumer.ack(message)
    print("popped", len(popped))
with AdminClient(address) as admin:
    print("admin", "orders" in admin.topics())
"""


def test_producer_and_consumers_without_compiled_code(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as cluster:
        done = run("-c", CLIENTS, cluster.namesrv)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["pushed True 24 24", "pulled 24 True", "popped 24", "admin True"]


# Of the suites that ``make test-pure`` runs whole.
SHORT = ["tests/client/producer/test_encode.py", "tests/remoting/test_connection.py"]
# With brokers as processes: signals in the middle of calls.
BESIDE_BROKERS = ["tests/client/net/test_interrupted.py", "tests/client/net/test_nested_calls.py"]
# Left out: parts of a broker inside of the test.
COMPILED = ("test_master_changes.py", "test_reactor.py", "test_struct_tables.py")


def suites() -> list[str]:
    """The files of client and protocol that need no broker inside of their process."""
    paths = [
        path
        for room in ("client/*", "client", "remoting")
        for path in sorted((ROOT / "tests").glob(f"{room}/test_*.py"))
    ]
    usable = [path for path in paths if path.parent.name != "flows" and path.name not in COMPILED]
    return [
        *(str(path.relative_to(ROOT)) for path in usable if "mqfast.testing" not in path.read_text()),
        *BESIDE_BROKERS,
    ]


def test_the_suites_pass_in_the_python_form() -> None:
    paths = suites() if WHOLE else SHORT
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *paths, timeout_s=3600)
    assert done.returncode == 0, done.stdout[-8000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    assert int(found[1]) > (1_300 if WHOLE else 80)

"""What users hold in their hands: public names, completion, types that catch a typo, results that pickle or say why."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mqfast


def test_every_public_name_is_there_and_in_dir() -> None:
    listed = dir(mqfast)
    for name in mqfast.__all__:
        assert getattr(mqfast, name) is not None
        assert name in listed
    assert len(set(mqfast.__all__)) == len(mqfast.__all__)


def test_nothing_but_public_names_is_listed() -> None:
    modules = {"client", "config", "errors", "message", "properties", "settings", "store"}
    names = {name for name in dir(mqfast) if not name.startswith("__")}
    assert names == set(mqfast.__all__) - {"__version__"} | modules
    assert {"Producer", "PushConsumer", "SendFailed", "MessageStore"} <= set(mqfast.__all__)


def test_without_msgspec_everything_but_the_clients_is_imported() -> None:
    root = str(Path(mqfast.__file__).parents[1])
    script = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{root!r}]\n"
    script += "from mqfast import *\nprint('Message' in globals(), 'Producer' in globals())"
    assert subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True
    ).stdout.split() == ["True", "False"]


def fresh(script: str, *arguments: str) -> list[str]:
    """The words that a script prints in a process that has imported nothing yet."""
    root = str(Path(mqfast.__file__).parents[1])
    script = f"import sys; sys.path.insert(0, {root!r})\n{script}"
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


LOADED = "print(*sorted(name for name in sys.modules if name.startswith('mqfast.')))"


def test_the_import_of_the_package_loads_no_module_of_it() -> None:
    assert fresh(f"import mqfast\n{LOADED}") == []
    heavy = "{'numpy', 'asyncio', 'logging', 'json', 'socket', 'threading', 'dataclasses'}"
    assert fresh(f"import mqfast\nprint(*{heavy} & sys.modules.keys())") == []


def test_a_name_loads_what_it_needs_and_no_more() -> None:
    assert fresh(f"import mqfast\nmqfast.errors\n{LOADED}") == ["mqfast.errors"]
    loaded = fresh(f"import mqfast\nmqfast.Message\n{LOADED}")
    assert "mqfast.message" in loaded
    assert not [name for name in loaded if name.startswith("mqfast.store")]


def test_names_are_complete_before_the_first_is_used() -> None:
    listed, starred, same = fresh(
        "import mqfast\nlisted = set(dir(mqfast))\nfrom mqfast import *\n"
        "print(listed >= set(mqfast.__all__), {*globals()} >= set(mqfast.__all__), open is mqfast.open)"
    )
    assert (listed, starred, same) == ("True", "True", "True")


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'opne'") as caught:
        mqfast.opne  # type: ignore[attr-defined]  # noqa: B018
    assert caught.value.name == "opne"
    with pytest.raises(ImportError, match="opne"):
        from mqfast import opne  # type: ignore[attr-defined]  # noqa: F401


def test_modules_are_attributes_of_the_package() -> None:
    names = ("config", "errors", "message", "properties", "settings", "store")
    assert fresh(f"import mqfast\nprint(*(getattr(mqfast, name).__name__ for name in {names}))") == [
        f"mqfast.{name}" for name in names
    ]


def test_type_checkers_read_the_same_homes_as_the_package_looks_into() -> None:
    tree = ast.parse(Path(mqfast.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    of_clients = mqfast._OF_CLIENTS | mqfast._OF_ERRORS
    assert typed.keys() | {"__version__"} == {*mqfast.__all__, *of_clients}
    listed = next(node.value for node in block.body if isinstance(node, ast.Assign))
    assert sorted(ast.literal_eval(listed)) == sorted(mqfast.__all__)
    for name, (module, inner) in typed.items():
        if module != "mqfast":
            assert getattr(mqfast, name) is getattr(sys.modules[module], inner), name


def test_the_type_of_everything_that_a_call_returns_has_a_public_name(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as store:
        returned = [
            store,
            store.put("t", b"x"),
            store.put_many("t", [b"y"]),
            store.put_nowait("t", b"z"),
            store.producer("t"),
            store.consumer("g", "t"),
            store.get("t", 0, 0),
            store.get("t", 0, 0)[0],
            store.recovery,
            store.state,
            store.config,
            store.config.describe()[0],
            store.put("t", b"x").status,
            store.get("t", 0, 0).status,
        ]
    with mqfast.StoreReader(tmp_path / "store") as reader:
        returned += [reader, reader.get("t", 0, 0), reader.queues()[0], reader.scan(), reader.tail("t")]
    returned += [mqfast.verify(tmp_path / "store"), mqfast.repair(tmp_path / "store")]
    for value in returned:
        assert getattr(mqfast, type(value).__name__) is type(value), type(value)


def test_messages_and_results_pickle(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as store:
        put = store.put("t", b"body", tags="a", keys="k", properties={"p": "v"})
        batch = store.put_many("t", [b"one", b"two"])
        found = store.get("t", 0, 0)
    same_put, same_batch, messages = pickle.loads(pickle.dumps((put, batch, list(found))))
    assert (same_put.status, same_put.message_id, same_put.store_timestamp) == (
        put.status,
        put.message_id,
        put.store_timestamp,
    )
    assert (same_batch.status, same_batch.message_id, len(same_batch)) == (batch.status, batch.message_id, 2)
    for before, after in zip(found, messages, strict=True):
        assert after.to_bytes() == before.to_bytes()
        assert (after.topic, after.queue_offset, bytes(after.body)) == (
            before.topic,
            before.queue_offset,
            bytes(before.body),
        )
    assert messages[0].properties == found[0].properties
    # Also in a process that has used no name of the package yet.
    (tmp_path / "pickled").write_bytes(pickle.dumps(list(found)))
    script = "import pickle; print(*(bytes(m.body).decode() for m in pickle.load(open(sys.argv[1], 'rb'))))"
    assert fresh(script, str(tmp_path / "pickled")) == ["body", "one", "two"]


@pytest.mark.parametrize(
    ("take", "hint"),
    [
        (lambda store: store, "StoreReader"),
        (lambda store: store.get("t", 0, 0), r"list\(result\)"),
        (lambda store: store.put_nowait("t", b"x"), "wait for it"),
        (lambda store: store.producer("t"), "one process writes"),
        (lambda store: store.consumer("g", "t"), "messages"),
    ],
    ids=["store", "result of a get", "ticket", "producer", "consumer"],
)
def test_an_argument_that_cannot_be_pickled_is_an_error_with_the_reason(
    tmp_path: Path, take: Callable[[mqfast.MessageStore], object], hint: str
) -> None:
    with mqfast.open(tmp_path / "store") as store:
        value = take(store)
        with pytest.raises(TypeError, match=hint):
            pickle.dumps(value)


TYPED = """
import mqfast
store = mqfast.open("x")
mqfast.open("x", profile="broker", retention="72h", flush_disk_type="SYNC_FLUSH", maxIndexNum=7, brokerIP1="1.2.3.4")
store.put("t", b"x", tags="a", keys=["k"], properties={"p": "v"})
store.put_many("t", [b"x", memoryview(b"y")])
ticket: mqfast.Ticket = store.put_nowait("t", bytearray(b"x"), born_timestamp=5)
message: mqfast.StoredMessage = store.get("t", 0, 0)[0]
consumer = mqfast.PushConsumer("g")
half = mqfast.TransactionProducer("g", check=lambda message: True, retries=3)

@consumer.on("t")
def handle(message: mqfast.Delivery) -> None: ...

@consumer.on("u", batch=8)
def handle_all(messages: list[mqfast.Delivery]) -> None: ...

message.bdoy
store.put("t", "a text")
store.put("t", 5)
store.put_many("t", ["a text"])
store.put_nowait("t", b"x", born_tmestamp=5)
store.consumer("g", "t", offset_reset="earlist")
mqfast.Message("t", None)
mqfast.open("x", flush_disk_typ="SYNC_FLUSH")
mqfast.open("x", flush_disk_type="SYNC_FLUSHED")
mqfast.open("x", flushDiskType="SYNC")
mqfast.open("x", profile="brokers")
mqfast.open("x", retention=72)
mqfast.open("x", mappedFileSizeCommitlog=1 << 20)
mqfast.StoreConfig.from_kwargs(max_index_num="7")
consumer.subscribe("t", lambda first, second: None)
mqfast.TransactionProducer("g", check=lambda message: True, retry=3)
"""


def test_a_type_checker_finds_typos(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "typed.py"
    program.write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--no-incremental", str(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"MYPYPATH": str(Path(mqfast.__file__).parents[1]), "PATH": ""},
    )
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if "typed.py" in line and "error:" in line]
    first = TYPED.splitlines().index("message.bdoy") + 1
    assert lines == list(range(first, len(TYPED.splitlines()) + 1)), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("statement", "missing", "extra"),
    [
        ("from mqfast import Producer", "msgspec", "client"),
        ("from mqfast.testing import Broker", "msgspec", "broker"),
        ("import mqfast.contrib.kombu", "kombu", "kombu"),
        ("import mqfast.contrib.metrics", "prometheus_client", "metrics"),
        ("import mqfast.contrib.otel", "opentelemetry", "otel"),
    ],
)
def test_an_extra_that_is_not_installed_is_named(statement: str, missing: str, extra: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    last = done.stderr.splitlines()[-1]
    assert f" needs {missing}" in last
    assert last.endswith(f": pip install 'mqfast[{extra}]'")


def test_a_broker_beside_a_command_names_its_extra() -> None:
    script = (
        "import sys; sys.modules['msgspec'] = None; "
        "from mqfast.testing.serve import main; sys.exit(main(['--', 'true']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    said = "mqfast.testing: mqfast.testing needs msgspec: pip install 'mqfast[broker]'\n"
    assert (done.returncode, done.stderr) == (2, said)


_STAND_INS = ("mqfast/compat/", "mqfast/sim/", "mqfast/pure/", "mqfast/grpc/messages.py")
"""Named as what is imitated: another client, parts of the simulation, compiled modules, messages of RocketMQ's API."""
_OF_TWO_FIELDS = {
    "Broker": "a broker, and a broker of tests: both public under their packages",
    "Channel": "remoting's, as in RocketMQ; kombu looks for a class of this name in a transport",
    "Event": "of threads, and of a drawn life of a message",
    "Refused": "an error of users, and a status of gRPC",
}


def test_a_public_class_name_stands_for_one_class() -> None:
    root = Path(mqfast.__file__).parent
    homes: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*.py*")):
        place = f"mqfast/{path.relative_to(root).as_posix()}"
        if path.suffix in (".py", ".pyx") and not place.startswith(_STAND_INS):
            for name in re.findall(r"^(?:cdef )?class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
                homes.setdefault(name, set()).add(place)
    twice = {name: sorted(places) for name, places in homes.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in _OF_TWO_FIELDS} == {}

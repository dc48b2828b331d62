"""msgspec's tables of Structs are built when their module is imported: a build at the first use crashed the process.

Room: tests. ``tests/issues/msgspec_struct_table_race.py`` is the report of the cause.
"""

from __future__ import annotations

import ast
import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import LONG

msgspec = pytest.importorskip("msgspec")

ROOT = Path(__file__).resolve().parents[2]


def _modules_with_structs() -> list[str]:
    """The modules of the package that define a Struct, found in their sources."""
    found = []
    for path in sorted((ROOT / "mqfast").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("Struct" in ast.unparse(base) for base in node.bases):
                found.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
                break
    return found


MODULES = _modules_with_structs()


def test_the_sources_define_structs() -> None:
    assert len(MODULES) > 20


@pytest.mark.parametrize("name", MODULES)
def test_every_struct_has_its_table_after_the_import(name: str) -> None:
    code = (
        "import gc, importlib, msgspec, sys\n"
        f"module = importlib.import_module({name!r})\n"
        "kinds = [one for one in gc.get_objects() if isinstance(one, type) and issubclass(one, msgspec.Struct)\n"
        "         and one is not msgspec.Struct and one.__module__.startswith('mqfast.')]\n"
        "assert any(one.__module__ == module.__name__ for one in kinds)\n"
        "print([one.__qualname__ for one in kinds\n"
        "       if not any(type(part).__name__ == 'StructInfo' for part in gc.get_referents(one))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", f"{name}: call build_tables(__name__) at the end of the module"


def test_a_struct_that_was_never_used_has_no_table() -> None:
    """The look of the test above is right for the msgspec that is installed."""
    kind = msgspec.defstruct("Unused", ["x"])
    assert not any(type(part).__name__ == "StructInfo" for part in gc.get_referents(kind))
    msgspec.json.Decoder(kind)
    assert any(type(part).__name__ == "StructInfo" for part in gc.get_referents(kind))


RACE = """
import gc, importlib, msgspec, sys, threading
from mqfast.errors import FieldError
from mqfast.remoting.bodies import decode_body
sys.setswitchinterval(1e-6)
for name in sys.argv[1:]:
    importlib.import_module(name)
kinds = [one for one in gc.get_objects() if isinstance(one, type) and issubclass(one, msgspec.Struct)
         and one is not msgspec.Struct and one.__module__.startswith("mqfast.")]
bodies = [msgspec.json.encode(dict.fromkeys(kind.__struct_encode_fields__)) for kind in kinds]
barrier = threading.Barrier(32)
def decode():
    for kind, body in zip(kinds, bodies):
        barrier.wait()
        try:
            decode_body(body, kind, "body")
        except FieldError:
            pass
threads = [threading.Thread(target=decode) for _ in range(32)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_first_decodes_of_many_threads() -> None:
    for name in MODULES:
        importlib.import_module(name)
    for number in range(200 if LONG else 5):
        done = subprocess.run([sys.executable, "-c", RACE, *MODULES], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"process {number}: {done.returncode} {done.stderr}"

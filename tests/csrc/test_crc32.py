"""The CRC in C against zlib: every variant this machine can run, every length and alignment, guard pages, torn sources.

The C files are compiled here, apart from the extension modules, with stricter warnings and once more with the
undefined-behaviour sanitizer. Formats and theory: csrc/crc32.c.
"""

from __future__ import annotations

import array
import ctypes
import os
import platform
import random
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CSRC = Path(__file__).resolve().parents[2] / "csrc"
SOURCES = sorted(str(path) for path in CSRC.glob("crc32*.c"))
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
ALIGNMENTS = 64
LENGTHS = 1101
SANITIZERS = ["-fsanitize=undefined", "-fno-sanitize-recover=all"]

X86 = ["vpclmul512", "vpclmul256", "pclmul", "portable"]
ARM = ["arm_pmull", "arm_crc", "portable"]
VARIANTS = {"x86_64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM}.get(platform.machine(), ["portable"])


def compiler() -> str:
    """Return the C compiler, or skip: without one there is nothing to test."""
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if found is None:
        pytest.skip("no C compiler found")
    return found


def compile_c(target: Path, *arguments: str) -> None:
    """Compile to target; the compiler's words are the failure message."""
    done = subprocess.run(
        [compiler(), *STRICT, f"-I{CSRC}", *arguments, "-o", str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C files as a shared library of their own."""
    path = tmp_path_factory.mktemp("crc32") / "libmqcrc32.so"
    compile_c(path, "-O2", "-fPIC", "-shared", *SOURCES)
    lib = ctypes.CDLL(str(path))
    lib.mq_crc32.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
    lib.mq_crc32.restype = ctypes.c_uint32
    lib.mq_crc32_copy.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    lib.mq_crc32_copy.restype = ctypes.c_uint32
    lib.mq_crc32_variant.restype = ctypes.c_char_p
    lib.mq_crc32_variants.restype = ctypes.POINTER(ctypes.c_char_p)
    lib.mq_crc32_can.argtypes = [ctypes.c_char_p]
    lib.mq_crc32_force.argtypes = [ctypes.c_char_p]
    return lib


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of random bytes and what zlib says about every slice of them; see crc32_check.c."""
    data = random.Random(20240229).randbytes(ALIGNMENTS + LENGTHS - 1)
    table = array.array("I", [ALIGNMENTS, LENGTHS])
    assert table.itemsize == 4
    crcs = array.array("I")
    for start in range(ALIGNMENTS):
        crcs.extend(zlib.crc32(data[start : start + length]) for length in range(LENGTHS))
    path = tmp_path_factory.mktemp("crc32") / "answers"
    path.write_bytes(table.tobytes() + data + crcs.tobytes())
    return path


@pytest.fixture(scope="module", params=["optimised", "sanitized"])
def checker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checking program, built as released and with the undefined-behaviour sanitizer."""
    folder = tmp_path_factory.mktemp("crc32")
    flags = ["-O3"]
    if request.param == "sanitized":
        flags = ["-O1", "-g", *SANITIZERS]
        trial = folder / "trial.c"
        trial.write_text("int main(void) { return 0; }\n")
        if subprocess.run(
            [compiler(), *SANITIZERS, str(trial), "-o", str(folder / "trial")], capture_output=True, check=False
        ).returncode:
            pytest.skip("this compiler has no undefined-behaviour sanitizer")
    path = folder / "crc32_check"
    compile_c(path, *flags, "-pthread", *SOURCES, str(Path(__file__).with_name("crc32_check.c")))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_agrees_with_zlib_and_stays_inside_its_buffers(
    variant: str, checker: Path, answers: Path, library: ctypes.CDLL
) -> None:
    if not library.mq_crc32_can(variant.encode()):
        pytest.skip(f"this processor cannot run {variant}")
    done = subprocess.run([str(checker), variant, str(answers)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    assert int(done.stdout) > 6 * ALIGNMENTS * LENGTHS


def test_all_variants_of_this_processor_are_listed_best_first(library: ctypes.CDLL) -> None:
    names = []
    listed = library.mq_crc32_variants()
    while listed[len(names)] is not None:
        names.append(listed[len(names)].decode())
    assert names == VARIANTS


def test_automatic_choice_is_the_best_that_can_run(library: ctypes.CDLL) -> None:
    assert library.mq_crc32_force(None) == 0
    best = next(name for name in VARIANTS if library.mq_crc32_can(name.encode()))
    assert library.mq_crc32_variant().decode() == best


def test_unknown_variant_is_refused_and_changes_nothing(library: ctypes.CDLL) -> None:
    assert library.mq_crc32_force(b"portable") == 0
    assert library.mq_crc32_force(b"abacus") == -1
    assert library.mq_crc32_can(b"abacus") == 0
    assert library.mq_crc32_variant() == b"portable"
    assert library.mq_crc32_force(None) == 0


def test_check_value_of_the_stored_form(library: ctypes.CDLL) -> None:
    assert library.mq_crc32(0, b"123456789", 9) & 0x7FFFFFFF == 1274296614


@settings(deadline=None, max_examples=200)
@given(parts=st.lists(st.binary(max_size=700), max_size=6), variant=st.sampled_from(VARIANTS))
def test_chaining_at_any_place_is_zlibs(library: ctypes.CDLL, parts: list[bytes], variant: str) -> None:
    library.mq_crc32_force(variant.encode())
    crc = expected = 0
    for part in parts:
        crc = library.mq_crc32(crc, part, len(part))
        expected = zlib.crc32(part, expected)
    library.mq_crc32_force(None)
    assert crc == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_four_mebibytes(library: ctypes.CDLL, variant: str) -> None:
    if library.mq_crc32_force(variant.encode()) != 0:
        pytest.skip(f"this processor cannot run {variant}")
    data = random.Random(4).randbytes(4 * 1024 * 1024 + 5)
    target = ctypes.create_string_buffer(len(data))
    assert library.mq_crc32(0, data, len(data)) == zlib.crc32(data)
    assert library.mq_crc32_copy(target, data, len(data)) == zlib.crc32(data)
    assert target.raw == data
    library.mq_crc32_force(None)


def test_generated_tables_are_what_the_script_prints() -> None:
    printed = subprocess.run(
        [sys.executable, str(CSRC / "crc32_consts.py")], capture_output=True, text=True, check=True
    ).stdout
    assert (CSRC / "crc32_tables.h").read_text() == printed

"""The C below the store for processors that this machine does not have: aarch64, emulated, and any other one.

Room: tests. The checks are the C files beside this one. Where the cross compiler or the emulator is missing (Debian:
gcc-aarch64-linux-gnu, qemu-user-static), the emulated checks are skipped: the release workflow has real machines.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
CRC = ("crc32.c", "crc32_x86.c", "crc32_arm.c")
# Program, sources, and the calls that it scripts: as in test_c_by_itself.py, which runs on this processor.
PROGRAMS = {
    "crc32_variants": CRC,
    "lock_check": ("atomics.c",),
    "short_copy_check": (),
}
# Every variant that the processor has, against the first definition of the checksum, at lengths around all block sizes.
VARIANTS = r"""
#include "crc32.h"
#include <stdio.h>
#include <string.h>

static uint32_t by_bits(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    while (n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

int main(void) {
    static uint8_t from[5000], to[5000];
    uint32_t x = 12345;
    for (size_t i = 0; i < sizeof from; i++) from[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    for (const char *const *name = mq_crc32_variants(); *name; name++) {
        if (!mq_crc32_can(*name)) continue;
        if (mq_crc32_force(*name) != 0) return 2;
        for (size_t n = 0; n < 4900; n += n < 600 ? 1 : 97) {
            uint32_t expected = by_bits(0, from + n % 7, n);
            memset(to, 0, sizeof to);
            if (mq_crc32(0, from + n % 7, n) != expected) return printf("%s: crc of %zu bytes\n", *name, n), 1;
            if (mq_crc32_copy(to, from + n % 7, n) != expected) return printf("%s: copy of %zu bytes\n", *name, n), 1;
            if (memcmp(to, from + n % 7, n) != 0 || to[n] != 0) return printf("%s: bytes of %zu\n", *name, n), 1;
            expected = by_bits(0, from, n + 5);
            if (mq_crc32(mq_crc32(0, from, 5), from + 5, n) != expected) return printf("%s: chain\n", *name), 1;
        }
        printf("%s ", *name);
    }
    return 0;
}
"""


def checked(tmp_path: Path, name: str, compiler: list[str], run: list[str]) -> str:
    """Compile a program and run it; return what it prints."""
    source = HERE / f"{name}.c"
    if name == "crc32_variants":
        source = tmp_path / f"{name}.c"
        source.write_text(VARIANTS)
    program, work = tmp_path / name, tmp_path / "work"
    work.mkdir()
    command = [*compiler, "-std=c11", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    subprocess.run([*command, *(CSRC / one for one in PROGRAMS[name]), source, "-o", program], check=True)
    done = subprocess.run([*run, program, work], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_an_unknown_processor(tmp_path: Path, name: str) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler found")
    assert checked(tmp_path, name, [compiler, "-DMQ_PORTABLE"], []) == ("portable " if name == "crc32_variants" else "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_aarch64(tmp_path: Path, name: str) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64-static")
    if compiler is None or emulator is None:
        pytest.skip("needs gcc-aarch64-linux-gnu and qemu-user-static")
    printed = checked(tmp_path, name, [compiler, "-static"], [emulator])
    assert printed.split() == (["arm_pmull", "arm_crc", "portable"] if name == "crc32_variants" else [])

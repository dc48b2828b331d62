"""What the real door asks of the real system: the calls of a process, noted by a library that is loaded before libc.

The simulated system of ``tests/crash`` stands in the place of the calls in ``csrc/os_api.c``, so it cannot see what
those pass on. Written for lines that could be broken without any test failing (``tests/mutation``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

SHIM = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <fcntl.h>
    #include <stdarg.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #include <unistd.h>

    static void say(const char *format, ...) {
        static int to = -1;
        if (to < 0) to = open(getenv("CALLS"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        char line[1024];
        va_list rest;
        va_start(rest, format);
        int n = vsnprintf(line, sizeof line, format, rest);
        va_end(rest);
        if (write(to, line, n) != n) abort();
    }

    static void say_file(const char *what, int fd) {
        char link[64], path[512];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n < 0 ? 0 : n] = 0;
        say("%s %s\n", what, path);
    }

    int msync(void *address, size_t n, int flags) {
        int rc = ((int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync"))(address, n, flags);
        say("msync %s\n", flags & MS_SYNC ? "waits" : "does not wait");
        return rc;
    }

    int fsync(int fd) {
        say_file("fsync", fd);
        return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
    }

    int rename(const char *from, const char *to) {
        say("rename %s\n", to);
        return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
    }
    """

WRITER = """
    import os, sys
    import mqfast

    def mark(text):
        with open(os.environ["CALLS"], "a") as calls:
            calls.write(text + "\\n")

    with mqfast.open(sys.argv[1], mappedFileSizeCommitLog=65536, flushDiskType="SYNC_FLUSH") as store:
        mark("opened")
        store.put("T", b"waits for the disk")
        mark("acknowledged")
        store.topic_table.ensure("U", 4)
        store.topic_table.persist()
        mark("saved")
    mark("closed")
    """


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a writer asked for, a line each; paths are relative to the store."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and Linux")
    folder = tmp_path_factory.mktemp("calls").resolve()
    (folder / "shim.c").write_text(textwrap.dedent(SHIM))
    build = [compiler, "-O1", "-shared", "-fPIC", "-o", str(folder / "shim.so"), str(folder / "shim.c"), "-ldl"]
    subprocess.run(build, check=True)
    store = folder / "store"
    environment = {**os.environ, "LD_PRELOAD": str(folder / "shim.so"), "CALLS": str(folder / "calls")}
    subprocess.run([sys.executable, "-c", textwrap.dedent(WRITER), str(store)], env=environment, check=True)
    return (folder / "calls").read_text().replace(f"{store}/", "").splitlines()


def test_a_put_that_is_acknowledged_has_waited_for_the_disk(calls: list[str]) -> None:
    assert "msync waits" in calls[calls.index("opened") : calls.index("acknowledged")]
    assert "msync does not wait" not in calls


def test_a_log_file_is_on_the_disk_with_its_name_before_it_is_used(calls: list[str]) -> None:
    name = "commitlog/" + "0" * 20
    made = calls.index(f"fsync {name}")
    assert made < calls.index("fsync commitlog", made) < calls.index("acknowledged")


def test_a_table_is_written_synced_renamed_and_its_directory_synced(calls: list[str]) -> None:
    table = "config/topics.json"
    saved = calls[calls.index("acknowledged") : calls.index("saved")]
    written, named = saved.index(f"fsync {table}.tmp"), saved.index(f"rename {table}")
    assert written < named < saved.index("fsync config", named)


def test_the_checkpoint_is_on_the_disk_before_the_store_counts_as_closed(calls: list[str]) -> None:
    closing = calls[calls.index("saved") : calls.index("closed")]
    written, named = closing.index("fsync checkpoint.tmp"), closing.index("rename checkpoint")  # its first form
    assert written < named

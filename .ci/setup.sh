#!/bin/sh
# What building and testing mqfast needs from the system, beside make: a Python with venv and headers, a C compiler.
# Run by the Makefile before anything else; installs what is missing on Debian and Ubuntu when it may, else ends with the
# one line that does. It must never change a system that has everything.
# PYTHON chooses the interpreter. Arguments name further commands and C headers to have, as PROGRAM=PACKAGE or
# HEADER.h=PACKAGE.
set -eu
python="${PYTHON:-python3}"
missing=""
need() { missing="$missing $1"; }

if command -v "$python" >/dev/null 2>&1; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "mqfast needs Python 3.11 or later; $python is $("$python" --version 2>&1). PYTHON=python3.12 make ... chooses another." >&2
        exit 1
    }
    # Debian names the packages of another Python than its own after the version.
    version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    name=python3
    [ "$(basename "$python")" = python3 ] || name="python$version"
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || need "$name-venv"
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || need "$name-dev"
else
    need "python3 python3-venv python3-dev"
fi
# A compiler that compiles: gcc alone comes without the headers of the C library.
compiler="${CC:-cc}"
echo '#include <stdio.h>' | $compiler -x c -fsyntax-only - >/dev/null 2>&1 || need "gcc libc6-dev"
# gRPC is built where nghttp2 is here. A build without it is complete otherwise, so only who may install gets it.
if ! echo '#include <nghttp2/nghttp2.h>' | $compiler -x c -fsyntax-only - >/dev/null 2>&1 &&
    command -v apt-get >/dev/null 2>&1 &&
    { [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }; }; then
    need libnghttp2-dev
fi
for pair in "$@"; do
    case "${pair%%=*}" in
        *.h) echo "#include <${pair%%=*}>" | $compiler -x c -fsyntax-only - >/dev/null 2>&1 ;;
        *) command -v "${pair%%=*}" >/dev/null 2>&1 ;;
    esac || need "${pair#*=}"
done
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "mqfast needs a Python with venv and headers, and a C compiler. Debian calls what is missing here:$missing" >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        printf 'Some packages are missing. Run this, then try again:\n\n    sudo apt-get update && sudo %s\n\n' "$install" >&2
        exit 1
    fi
fi
echo "installing:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq >&2
$as_root $install -qq >/dev/null

#!/bin/sh
# Builds the engine with sanitizers and edge coverage into build/fuzz (beside the usual build) and fuzzes it.
# Usage: tests/fuzz/run.sh PYTHON SECONDS [arguments of tests/fuzz/fuzz.py]
set -eu
python=$1
seconds=$2
shift 2
lib=build/fuzz/lib
mkdir -p "$lib"
CFLAGS="-fsanitize-coverage=trace-pc" MQFAST_SANITIZE=1 "$python" setup.py -q build --build-base build/fuzz --build-lib "$lib"
gcc -O2 -shared -fPIC -o build/fuzz/libcoverage.so tests/fuzz/coverage.c
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so) $PWD/build/fuzz/libcoverage.so" \
    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
    PYTHONPATH="$lib:$PWD" "$python" -P -m tests.fuzz.fuzz --seconds "$seconds" "$@"
# The frames of a reactor, in C: 10 million inputs with the usual number of seconds.
gcc -std=gnu11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -o build/fuzz/reactor_frames \
    tests/fuzz/reactor_frames.c -pthread
build/fuzz/reactor_frames "$((seconds * 16667))" "$seconds"

#!/bin/sh
# The long race lane: a stress on a build with ThreadSanitizer (in build/races, beside the usual build), then one on the
# build that checks its rules (build/debug, see Makefile) with forks, SECONDS together. Between them tests of a broker's
# reactors run with the sanitizer, once: everything at once (test_reactor_races.py), and each kind by itself. Ends with
# one line of counts; any report of the sanitizer fails it.
# Usage: tests/races/run.sh PYTHON SECONDS [arguments of python -m tests.races]
#
# The interpreter is not instrumented: its locks are pthread mutexes and semaphores, which the preloaded library sees; ours
# are __atomic builtins, which the compiler instruments. So only the engine's own reads and writes are checked, all of them.
set -eu
python=$1
seconds=$2
shift 2
lib=build/races/lib
reports=build/races/reports
rm -rf "$reports"
mkdir -p "$lib" "$reports"
MQFAST_SANITIZE=thread "$python" setup.py -q build --build-base build/races --build-lib "$lib" >build/races/build.log 2>&1 ||
    { cat build/races/build.log; exit 1; }
${CC:-cc} -O1 -g -fsanitize=thread -shared -fPIC -o build/races/canary.so tests/races/canary.c
# Address space layouts that an older runtime cannot live with are switched off where that is allowed.
plain=
if command -v setarch >/dev/null && setarch -R true 2>/dev/null; then plain='setarch -R'; fi
tsan() {
    report=$1
    shift
    LD_PRELOAD="$(${CC:-cc} -print-file-name=libtsan.so)" PYTHONPATH="$lib:$PWD" \
        TSAN_OPTIONS="log_path=$report exitcode=66 halt_on_error=0 history_size=5 second_deadlock_stack=1" \
        $plain "$python" -P -m "$@"
}
tsan "$reports/canary" tests.races --canary "$PWD/build/races/canary.so" && { echo "races: the sanitizer missed a race made for it"; exit 1; }
ls "$reports"/canary.* >/dev/null 2>&1 || { echo "races: the sanitizer does not run here"; exit 1; }
rm -f "$reports"/canary.*

half=$(((seconds + 1) / 2))
status=0
tsan "$reports/report" tests.races --seconds "$half" --no-forks --counts build/races/tsan.json "$@" || status=$?
if [ "$status" -eq 0 ]; then
    MQFAST_REACTOR_CHANGES=200 tsan "$reports/report" pytest -q -p no:cacheprovider tests/remoting/test_reactor.py \
        tests/broker/fast/test_reactor_races.py tests/broker/fast/test_fast_sends.py \
        tests/broker/fast/test_fast_pulls.py tests/broker/fast/test_slaves_of_reactors.py || status=$?
fi
found=$(cat "$reports"/report.* 2>/dev/null | grep -c '^WARNING: ThreadSanitizer') || true
if [ "$status" -ne 0 ] || [ "$found" -ne 0 ]; then
    cat "$reports"/report.* 2>/dev/null || true
    echo "races: $found reports of ThreadSanitizer, status $status"
    exit 1
fi
counts=$PWD/build/races/plain.json
(cd build/debug/tree && PYTHONPATH="$PWD" "$python" -P -m tests.races --seconds "$half" --counts "$counts" "$@")
"$python" -P -c '
import collections, json, sys
both = sum((collections.Counter(json.load(open(path))) for path in sys.argv[1:]), collections.Counter())
words = ", ".join(f"{count} {kind}" for kind, count in sorted(both.items()))
print(f"races: 0 reports of ThreadSanitizer; {words}")' build/races/tsan.json build/races/plain.json

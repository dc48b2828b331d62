"""``java_client.py NAMESRV TOPIC GROUP COUNT``: a stock Java client sends messages and receives each of them.

Room: tests/interop. A process of its own for ``make demo``: it needs neither pytest nor mqfast. The last line of its
output says what was done, or why not. Exit code: 0; 3 where Java or the network is missing; 1 where the client failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "golden" / "make"), str(HERE.parent / "compat")]

from java_oracle import NEWEST, JavaOracle  # noqa: E402
from make import STEP_S, Machine, jars  # noqa: E402
from maven import MavenError  # noqa: E402

MISSING = 3
FETCH_S = 120
CLIENT = f"the Java client of Apache RocketMQ {NEWEST}"


def main(namesrv: str, topic: str, group: str, count: str) -> int:
    """Returns: the exit code."""
    is_there, _ = JavaOracle.available()
    if not is_there:
        print(f"{CLIENT}: it needs java, javac and mvn")
        return MISSING
    try:
        jars(NEWEST, HERE / "Flow.java", timeout_s=FETCH_S)
    except (MavenError, subprocess.SubprocessError, OSError) as error:
        print(f"{CLIENT} cannot be fetched from Maven Central: {error}".replace("\n", " "))
        return MISSING
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(NEWEST, Path(folder), HERE / "Flow.java")
        try:
            out, _ = machine.java(namesrv, topic, group, count, main="Flow").communicate(timeout=STEP_S)
            failed = not out.endswith("done\n")
            if failed:
                print(*(path.read_text() for path in Path(folder).glob("Flow*.log")), out, sep="\n")
        finally:
            machine.end_all()
    print(f"{CLIENT} {'failed' if failed else f'sent {count} messages and received each of them'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

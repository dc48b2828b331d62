"""Report to msgspec (0.19 to 0.22): the first decode of a Struct by several threads ends the process with SIGSEGV.

The table of a Struct (StructInfo) is published before its types are filled, and Python code runs in between, so that a
second thread reads NULL. Each run starts processes until one crashes; mqfast builds all tables at import instead.
"""

import subprocess
import sys

RACE = """
import msgspec, sys, threading
sys.setswitchinterval(1e-6)
kinds = []
for i in range(50):
    inner = msgspec.defstruct(f"Inner{i}", [(f"f{j}", list[int] | None, None) for j in range(20)])
    kinds.append(msgspec.defstruct(f"Outer{i}", [("inner", list[inner]), ("last", int)]))
barrier = threading.Barrier(16)
def decode():
    for kind in kinds:
        barrier.wait()
        msgspec.json.decode(b'{"inner":[],"last":1}', type=kind)
threads = [threading.Thread(target=decode) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""

if __name__ == "__main__":
    for run in range(200):
        if (code := subprocess.run([sys.executable, "-c", RACE], check=False).returncode) < 0:
            sys.exit(f"run {run}: ended by signal {-code}")
    print("200 runs, none crashed")

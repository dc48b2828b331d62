"""``python -m mqfast.testing.child FD``: the process of a Broker(process=True); see ``process.py``."""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Connection

from mqfast.testing.process import serve_calls

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # control-C is for the test, which ends this process
    serve_calls(Connection(int(sys.argv[1])))

"""Runs a command with the address of servers of this environment: ``python -P beside_servers.py COMMAND...``.

Run by wheels/try_wheel.py; the command, of another environment, gets the address of the name server as its last
argument.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from programs import output_of, servers

with tempfile.TemporaryDirectory() as place, servers(Path(place)) as address:
    print("\n".join(output_of([*sys.argv[1:], address], Path(place))))

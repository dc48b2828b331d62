"""``python -m mqfast``: the command without its installed script. It must hold nothing else."""

from __future__ import annotations

import sys

from mqfast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m mqfast.testing -- COMMAND``: see ``serve.py``."""

from __future__ import annotations

import sys

from mqfast.testing.serve import main

if __name__ == "__main__":
    sys.exit(main())

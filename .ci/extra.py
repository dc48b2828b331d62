"""Prints the requirements of the extras of pyproject.toml named on the command line, for pip; needs no package."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
print(*(line.replace(" ", "") for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]))

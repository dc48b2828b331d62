"""Writes what each request code needs into the table of codes in ``broker.md``: ``python docs/rights_table.py``.

It must never hold a fact of its own: rights come from ``mqfast.broker.acl.required_permissions``. Codes, names and
who asks stay as the page has them. A test compares the page with what this writes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mqfast.broker.acl.plain import ADMIN, PUB, SUB, right_of  # noqa: E402
from mqfast.broker.acl.required_permissions import NEEDS, RequestNeed  # noqa: E402
from mqfast.broker.acl.terms import Kind  # noqa: E402  (the sources beside this file, not an installed package)

DOCUMENT = ROOT / "docs" / "broker.md"
BEGIN, END = "<!-- request codes -->", "<!-- end of request codes -->"
HEAD = "| Code | Name | Asked by | ACL 1.0 | ACL 2.0 |\n|---|---|---|---|---|"
WORDS = {PUB: "PUB", SUB: "SUB", PUB | SUB: "PUB or SUB"}


def of_plain(parts: tuple[RequestNeed, ...]) -> str:
    """The rights of ACL 1.0."""
    rights = [(right_of(part.kind, part.actions), part.kind) for part in parts]
    if any(right == ADMIN for right, _ in rights):
        return "administrator"
    return ", ".join(dict.fromkeys(f"{WORDS[right]} of {kind.lower()}" for right, kind in rights))


def of_rules(parts: tuple[RequestNeed, ...]) -> str:
    """The actions of ACL 2.0, and where the request names the resource."""
    texts = []
    for part in parts:
        actions = " or ".join(part.actions)
        texts.append(f"{part.kind} {actions}" + (f": {part.where}" if part.kind is not Kind.CLUSTER else ""))
    return "; ".join(texts)


def renewed(document: str) -> str:
    """The document with the last two columns of its table written anew."""
    head, _, rest = document.partition(BEGIN)
    table, _, tail = rest.partition(END)
    rows = re.findall(r"^(\| (\d+) \| `\w+` \| [^|]+ \|).*$", table, re.MULTILINE)
    lines = [f"{kept} {of_plain(NEEDS[int(code)])} | {of_rules(NEEDS[int(code)])} |" for kept, code in rows]
    return "\n".join([head + BEGIN, HEAD, *lines, END]) + tail


if __name__ == "__main__":
    DOCUMENT.write_text(renewed(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")

"""Writes `docs/openapi.json` and the table of operators' routes in `docs/http.md`:
`python scripts/http_doc.py`.

Both are made from the operations in `late/api/operator/`. A test compares pages and sources.
"""

from __future__ import annotations

import json
from pathlib import Path

from late.api.http.openapi import document
from late.api.operator.operation import Operation
from late.api.operator.table import OPERATIONS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "openapi.json"
PAGE = ROOT / "docs" / "http.md"
BEGIN, END = "<!-- made by scripts/http_doc.py -->\n", "<!-- end -->\n"


def table() -> str:
    """Return the table of all operations, one row each."""
    rows = "".join(_row(each) for each in OPERATIONS)
    return f"| request | like | role | |\n|---|---|---|---|\n{rows}"


def _row(operation: Operation) -> str:
    like = ", ".join(f"`{command}`" for command in operation.commands)
    whole = ", all queues" if operation.rule.reach == "all" else ""
    role = f"{operation.rule.role}{whole}"
    return f"| `{operation.method} {operation.path}` | {like} | {role} | {operation.summary} |\n"


def page(text: str) -> str:
    """Return the page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def openapi() -> str:
    """Return the OpenAPI document as it is kept."""
    return json.dumps(document(), indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Write both files."""
    PAGE.write_text(page(PAGE.read_text()))
    DOCUMENT.write_text(openapi())


if __name__ == "__main__":
    main()

"""Count the lines that stand in `late/` more than once, and refuse more than there were.

A duplicate is a run of `RUN` or more lines that another place has as well, without blank lines,
comments and indentation. Imports and generated code do not count.

    python scripts/check_duplicates.py [--list]
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUN = 12
MOST = 50
"""Lines in duplicates today. Lower it when they become fewer."""

Line = tuple[int, str]


def lines_of(text: str) -> list[Line]:
    """(number, text) of the lines that count, each without what surrounds it."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    stripped = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [
        (number, line)
        for number, line in stripped
        if line and not line.startswith("#") and number not in left_out
    ]


def duplicates(files: dict[str, list[Line]]) -> dict[tuple[str, int], list[str]]:
    """(file, line) of each line in a duplicate -> where the runs that hold it begin elsewhere."""
    windows: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, lines in files.items():
        texts = [text for _, text in lines]
        for start in range(len(texts) - RUN + 1):
            windows[tuple(texts[start : start + RUN])].append((path, start))
    found: dict[tuple[str, int], list[str]] = {}
    for places in windows.values():
        if len(places) < 2:
            continue
        for path, start in places:
            others = [f"{p}:{files[p][s][0]}" for p, s in places if (p, s) != (path, start)]
            for number, _ in files[path][start : start + RUN]:
                found.setdefault((path, number), others)
    return found


def main(arguments: list[str], root: Path = ROOT) -> int:
    """0 if no more lines are duplicates than `MOST`, else 1."""
    files = {
        str(path.relative_to(root)): lines_of(path.read_text())
        for path in sorted((root / "late").rglob("*.py"))
        if "v1" not in path.relative_to(root).parts
    }
    found = duplicates(files)
    seen: set[str] = set()
    for (path, number), others in found.items():
        told = f"{path} beside {', '.join(others)}"
        if (len(found) > MOST or "--list" in arguments) and told not in seen:
            print(f"{path}:{number}: also at {', '.join(others)}")
        seen.add(told)
    print(f"[duplicates] {len(found)} lines; {MOST} may be")
    return 1 if len(found) > MOST else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

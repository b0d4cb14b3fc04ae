"""Refuses what must not be in the repository: `python scripts/check_tree.py [FILE ...]`.

- a package registry's host, or a path of somebody's machine: neither means anything elsewhere;
- unfinished work left as a comment;
- a module above 500 lines, and in `late/` a function above 70: they are split by responsibility
  while that is still easy.

Without arguments it reads every tracked file. The patterns are written so that this file does not
match itself.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

HOSTS = re.compile(r"pypi[.]org|files[.]pythonhosted|registry[.]npmjs|deb[.]debian[.]org")
MACHINE = re.compile(r"/(?:work|farm|root|opt/[p]ypi|tmp/[s]cratch)/|/(?:home|Users)/[a-z]\w*/")
GENERATED = re.compile(r"late/v1/\w+_pb2(_grpc)?[.]pyi?")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X]|NotImpl[e]mentedError)\b")


def text_problems(name: str, text: str) -> Iterator[str]:
    """One line per finding, with file and line number."""
    for number, line in enumerate(text.splitlines(), start=1):
        if HOSTS.search(line):
            yield f"{name}:{number}: names a package registry's host"
        # A hash cannot hold a path, and the locks are checked for one when they are made.
        if not name.endswith(".lock") and MACHINE.search(line):
            yield f"{name}:{number}: names a path of one machine"
        if name.endswith((".py", "Makefile", ".toml")) and UNFINISHED.search(line):
            yield f"{name}:{number}: unfinished work; finish it, or write down why not"


def size_problems(name: str, text: str) -> Iterator[str]:
    """Modules that are too long, and in `late/` functions that are."""
    lines = len(text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{name}: {lines} lines, at most {MODULE_LINES_MAX}"
    if not name.startswith("late/"):
        return
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield (
                    f"{name}:{node.lineno}: {node.name} has {length} lines, "
                    f"at most {FUNCTION_LINES_MAX}"
                )


def problems(name: str, content: bytes) -> list[str]:
    """Everything wrong with one file; a binary or generated file has none."""
    if b"\0" in content or GENERATED.fullmatch(name):
        return []
    text = content.decode("utf-8", errors="replace")
    found = list(text_problems(name, text))
    if name.endswith(".py"):
        found += size_problems(name, text)
    return found


def tracked(root: Path) -> list[str]:
    """Files that git knows or would add; ignored ones are nobody's business."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted({name for name in listed.split("\0") if name and (root / name).is_file()})


def main(arguments: Sequence[str]) -> int:
    names = list(arguments) or tracked(ROOT)
    found = [line for name in names for line in problems(name, (ROOT / name).read_bytes())]
    print("\n".join(found) if found else f"tree: {len(names)} files, nothing to object to")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

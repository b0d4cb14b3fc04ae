"""Refuse names and docstrings that a newcomer would have to decode.

    python scripts/check_words.py [FILE or FOLDER ...]

- a docstring of `late/` that begins as a fragment (`What was read`): it is a sentence, an
  imperative or the name of a thing;
- a module named by a verb in -ing: modules are things;
- two public classes of one name in one room of `late/`, or two words of the glossary that are one.

Without arguments it reads all of `late/` and the glossary.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_WORDS = "All And As But For How Of Or That What When Where Whether Which Who Whom Whose"
FRAGMENTS = frozenset(_WORDS.split())
"""First words that begin no sentence of a docstring. `If` and `No` may begin one."""
GLOSSARY = ROOT / "docs" / "glossary.md"


def fragments(name: str, tree: ast.Module) -> Iterator[str]:
    """Docstrings, those below a field as well, whose first word begins a fragment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            match child:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    first = re.match(r"\s*(\w+)", text)
                    if first and first[1] in FRAGMENTS:
                        line = text.strip().splitlines()[0]
                        yield f"{name}:{child.lineno}: begins as a fragment: {line[:60]}"


def classes(tree: ast.Module) -> list[str]:
    """The public classes that a module defines."""
    found = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return [name for name in found if not name.startswith("_")]


def glossary_problems(text: str) -> Iterator[str]:
    """Words that stand in more than one row."""
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    words = Counter(word.strip() for row in rows for word in row.split(","))
    for word, times in words.items():
        if times > 1:
            yield f"docs/glossary.md: {word!r} has {times} meanings"


DJANGO = {("commands", "Command"), ("migrations", "Migration")}
"""Classes that Django finds by their names, one in each module of these folders."""


def problems(paths: Sequence[Path]) -> Iterator[str]:
    """Every problem of these modules, as `file:line: what`."""
    rooms: dict[tuple[Path, str], list[str]] = {}
    for path in paths:
        name = str(path.relative_to(ROOT))
        if path.stem.endswith("ing"):
            yield f"{name}: a module is a thing, not an activity"
        tree = ast.parse(path.read_text(), name)
        yield from fragments(name, tree)
        for each in classes(tree):
            if (path.parent.name, each) in DJANGO:
                continue
            rooms.setdefault((path.parent, each), []).append(name)
    for (_, each), names in rooms.items():
        if len(names) > 1:
            yield f"{', '.join(names)}: two classes {each} in one room"


def modules(arguments: Sequence[str]) -> list[Path]:
    """The modules to read, without generated ones."""
    given = [ROOT / argument for argument in arguments] or [ROOT / "late"]
    found = (path for each in given for path in ([each] if each.is_file() else each.rglob("*.py")))
    return sorted(path for path in found if path.suffix == ".py" and "_pb2" not in path.name)


def main(arguments: Sequence[str]) -> int:
    found = list(problems(modules(arguments)))
    if not arguments:
        found += glossary_problems(GLOSSARY.read_text())
    print("\n".join(found) if found else "words: nothing to object to")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

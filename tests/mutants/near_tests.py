"""Which units are about a module: those that import it, told by reading them and not by running
them. They are tried first, for most mutants need no other test."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

from tests.mutants.areas import ROOT

UNITS = "tests/unit"
LEFT_OUT = ("test_soft_limit.py", "test_simulation.py")
"""The one raises errors in other threads, the other lives worlds: they are slow."""


@lru_cache(maxsize=256)
def near_tests(module: str) -> tuple[str, ...]:
    """Return the files of the units that import a module, those that do so themselves first.

    The others do it through a helper of the units, or through modules of the module's folder.
    """
    folder = Path(module).parent.as_posix()
    files = [path for each in (folder, UNITS) for path in sorted((ROOT / each).glob("*.py"))]
    imports = {_dotted(path): _imports(path) for path in files}
    reached, found = {_dotted(ROOT / module)}, []
    while new := {name for name, used in imports.items() if used & reached} - reached:
        found += sorted(name for name in new if name.startswith("tests.unit.test_"))
        # Who imports a test file wants its helpers, and nothing of what the file imports.
        reached |= {name for name in new if not name.startswith("tests.unit.test_")}
        for name in new - reached:
            del imports[name]
    paths = [f"{name.replace('.', '/')}.py" for name in found]
    return tuple(path for path in paths if Path(path).name not in LEFT_OUT)


def _dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _imports(path: Path) -> frozenset[str]:
    """Return the names that a file imports: of each `from a import b` both `a` and `a.b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{each.name}" for each in node.names)
    return frozenset(found)

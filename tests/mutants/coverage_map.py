"""Which tests run which lines: the coverage of the suites, test by test.

CPython 3.11 tells a tracer nothing of a coroutine that goes on because a time-out was thrown into
what it awaits, and caught there: the lines after the `await` run unseen. So a line has the tests of
the `await` before it, too.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from coverage import CoverageData

from tests.mutants.areas import ROOT

SUITES = (
    *("tests/unit", "--ignore=tests/unit/test_soft_limit.py", "tests/conformance"),
    *(
        path.relative_to(ROOT).as_posix()
        for store in ("postgres", "sqlite", "spanner")
        for path in sorted((ROOT / "tests" / "integration").glob(f"test_{store}_*.py"))
    ),
    "tests/integration/test_group_retention.py",
    "tests/integration/test_groups.py",
    "tests/integration/test_lease_keepers.py",
)
"""All but tests that raise errors in other threads: there the tracer of the coverage hangs."""
SLOW = tuple(
    f"tests/unit/test_{name}.py"
    for name in ("simulation", "core_property", "bench_overload", "bench_guard", "cockroach_model")
)
"""Units that take longest: the last of them."""


class CoverageMap:
    """The tests that see each line.

    Args:
        paths: the files with the coverage.
    """

    def __init__(self, *paths: Path) -> None:
        self._data = [CoverageData(str(path)) for path in paths]
        for data in self._data:
            data.read()

    def of(self, module: str, line: int) -> list[str]:
        """Return the names of the tests that run a line or the `await` before it, those of units
        first, of these the ones named after the module; for a line that runs as its module is
        imported, of all that use the module, or if there are none (it has constants alone) its
        folder, and the files of units that import it."""
        lines = self._contexts(ROOT / module)
        tree = ast.parse((ROOT / module).read_text())
        own = lines_of_statement(tree.body, line)
        found = {
            test
            for one in (*own, *awaits_before(tree.body, line))
            for test in _tests(lines.get(one, ()))
        }
        if not found and any("" in lines.get(one, ()) for one in own):
            found = {test for contexts in lines.values() for test in _tests(contexts)}
            found = found or _importers(module) | {
                test
                for path in sorted((ROOT / module).parent.glob("*.py"))
                for contexts in self._contexts(path).values()
                for test in _tests(contexts)
            }
        stem, store = Path(module).stem, Path(module).parent.name
        ranks = {
            test: (
                not test.startswith("tests/unit"), stem not in test, store not in test,
                test.startswith(SLOW), test,
            )
            for test in found
        }  # fmt: skip
        return sorted(found, key=ranks.__getitem__)

    def _contexts(self, path: Path) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for data in self._data:
            for line, contexts in data.contexts_by_lineno(str(path)).items():
                found.setdefault(line, []).extend(contexts)
        return found


def _importers(module: str) -> set[str]:
    """Return the files of units that import a module."""
    name = module.removesuffix(".py").replace("/", ".")
    package, _, stem = name.rpartition(".")
    written = re.compile(
        rf"^from ({re.escape(name)} import|{re.escape(package)} import {stem}\b)", re.M
    )
    files = sorted((ROOT / "tests" / "unit").glob("test_*.py"))
    found = (path for path in files if written.search(path.read_text()))
    return {path.relative_to(ROOT).as_posix() for path in found}


def awaits_before(statements: Sequence[ast.stmt], line: int) -> set[int]:
    """Return the lines of `await` in the last statement before a line that has any, within the
    function of the line: after one of these it may have run unseen."""
    found: set[int] = set()
    for statement in statements:
        if statement.lineno > line:
            break
        if (statement.end_lineno or 0) < line:
            found = _awaits([statement]) or found
            continue
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return awaits_before(statement.body, line)
        if isinstance(statement, ast.AsyncFor | ast.AsyncWith):
            found = {statement.lineno}
        if isinstance(statement, ast.Try) and line > (statement.body[-1].end_lineno or 0):
            found = _awaits(statement.body) or found
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for block in _blocks(getattr(statement, name, [])):
                if block[0].lineno <= line <= (block[-1].end_lineno or 0):
                    found = awaits_before(block, line) or found
    return found


def lines_of_statement(statements: Sequence[ast.stmt], line: int) -> range:
    """Return the lines of the innermost statement at a line, of one with a body those before it: of
    a text that goes over several lines only the first may be seen to run."""
    for statement in statements:
        if not statement.lineno <= line <= (statement.end_lineno or 0):
            continue
        inner = [
            block
            for name in ("body", "orelse", "finalbody", "handlers", "cases")
            for block in _blocks(getattr(statement, name, []))
        ]
        for block in inner:
            if block[0].lineno <= line <= (block[-1].end_lineno or 0):
                return lines_of_statement(block, line)
        ends = min((block[0].lineno - 1 for block in inner), default=statement.end_lineno or line)
        return range(statement.lineno, max(ends, line) + 1)
    return range(line, line + 1)


def _blocks(part: Sequence[ast.AST]) -> list[list[ast.stmt]]:
    """Return the lists of statements of a part of one: the part itself, or those in it."""
    statements = [each for each in part if isinstance(each, ast.stmt)]
    inner = [each.body for each in part if isinstance(each, ast.ExceptHandler | ast.match_case)]
    return [block for block in (statements, *inner) if block]


def _awaits(statements: Sequence[ast.stmt]) -> set[int]:
    kinds = ast.Await | ast.AsyncFor | ast.AsyncWith
    nodes = (node for statement in statements for node in ast.walk(statement))
    return {node.lineno for node in nodes if isinstance(node, kinds)}


def _tests(contexts: Collection[str]) -> set[str]:
    return {context.rpartition("|")[0] for context in contexts} - {""}


def record(path: Path) -> None:
    """Run the tests once, as they are, and keep what they ran. They must pass."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rules = path.with_name("coveragerc")
    rules.write_text("[run]\nbranch = false\n")
    areas = ("late/scheduler", "late/store", "late/tailer")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not quiet", *SUITES),
        *(f"--cov={ROOT / area}" for area in areas),
        *("--cov-context=test", "--cov-report=", f"--cov-config={rules}"),
    ]
    environment = {"COVERAGE_FILE": str(path)}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment)
    if done.returncode != 0:
        raise SystemExit("mutants: the tests fail as they are")

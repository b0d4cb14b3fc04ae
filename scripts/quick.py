"""Check a change in less than 90 seconds: lint, types, contracts and the tests that it touches.

A change is what differs from the merge base with the main branch, with files not yet committed. A
test is touched if its file has changed, or if it imports a changed module, or one that imports a
changed module. The nearest ones come first, unit tests before others, and `MOST` files are run, on
SQLite only. The whole suite is `make test`.

    python scripts/quick.py [--base REVISION] [--list]
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
MOST = 24
CHECKS = {
    "lint": [str(BIN / "ruff"), "check", "-q", "."],
    "format": [str(BIN / "ruff"), "format", "-q", "--check", "."],
    "types": [str(BIN / "mypy")],
    "contracts": [str(BIN / "lint-imports"), "--no-cache"],
}


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed(base: str) -> list[str]:
    """Paths of Python files that differ from the merge base and still exist."""
    (found,) = git("merge-base", base, "HEAD")
    paths = {*git("diff", "--name-only", found), *git("ls-files", "-o", "--exclude-standard")}
    return sorted(p for p in paths if p.endswith(".py") and (ROOT / p).exists())


def module_of(path: str) -> str:
    return (
        path.removeprefix("spark/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    )


def imported(text: str) -> set[str]:
    """The modules, and names that may be modules, that the source imports at any place."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def choose(
    paths: Iterable[str], tests: dict[str, set[str]], importers: dict[str, set[str]]
) -> list[str]:
    """Test files that the changed paths touch, the nearest first.

    Args:
        paths: the changed files.
        tests: test file -> what it imports.
        importers: changed module -> the modules that import it.
    """
    modules = {module_of(path) for path in paths}
    around = {module for changed in modules for module in importers.get(changed, ())}
    ranked = []
    for path, names in tests.items():
        if path in paths:
            rank = 0
        elif names & modules:
            rank = 1
        elif names & around:
            rank = 2
        else:
            continue
        ranked.append((rank, not path.startswith("tests/unit/"), path))
    return [path for _, _, path in sorted(ranked)]


def touched(paths: list[str]) -> list[str]:
    graph = grimp.build_graph("late", cache_dir=None)
    importers = {
        module: set(graph.find_modules_that_directly_import(module))
        for module in map(module_of, paths)
        if module in graph.modules
    }
    tests = {
        str(path.relative_to(ROOT)): imported(path.read_text())
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
    }
    return choose(paths, tests, importers)


def main(arguments: list[str]) -> int:
    """0 if everything passes, else 1."""
    parser = argparse.ArgumentParser(prog="quick")
    parser.add_argument("--base", default="main", help="the revision to compare with")
    parser.add_argument("--list", action="store_true", help="name the tests and run nothing")
    asked = parser.parse_args(arguments)
    files = touched(changed(asked.base))
    if asked.list:
        print("\n".join(files))
        return 0
    began = time.monotonic()
    running = {
        name: subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for name, command in CHECKS.items()
    }
    failed = []
    for name, process in running.items():
        output, _ = process.communicate()
        print(f"[quick] {name}: {'FAILED' if process.returncode else 'passes'}", flush=True)
        if process.returncode:
            failed.append(name)
            print(output)
    if files:
        print(f"[quick] {min(len(files), MOST)} of {len(files)} touched test files", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"]
        command += ["-m", "not long and not quiet", "-k", "not postgres and not spanner"]
        # 5 is pytest's code where no test is left.
        if subprocess.run([*command, *files[:MOST]], cwd=ROOT).returncode not in (0, 5):
            failed.append("tests")
    print(f"[quick] {time.monotonic() - began:.0f} s; failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

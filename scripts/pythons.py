"""Build the wheel once and try it on each Python: `make pythons`.

Each Python gets an empty environment with the wheel and what it needs, runs the README's code and
the demo on SQLite, then gets every extra and the unit tests. A Python is a path, or a name on PATH
or among pyenv's versions; where none is given, those of `PYTHONS` are looked for. One that fails
does not stop the others.

    python -m scripts.pythons [--tests ARGUMENTS] [PYTHON ...]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts import dist

PYTHONS = ("python3.12", "python3.13", "python3.14")
UNIT_TESTS = ("-q", "-n", "2", "-m", "not quiet and not shared and not long", "tests/unit")
WHO = """
import sys
locks = getattr(sys, "_is_gil_enabled", lambda: True)()
print(sys.version.split()[0], "" if locks else "without the GIL")
"""


def build(scratch: Path) -> Path:
    """Return the wheel of the files that git knows."""
    dist.copy(scratch / "source", other=False)
    return dist.build(scratch / "source", "wheel")


def use(programs: Path, scratch: Path) -> None:
    """Run what a reader runs first, with the wheel and what it needs alone.

    Raises:
        SystemExit: a command failed; with its output.
    """
    dist.try_out(programs, scratch / "readme")
    alone = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ""}
    (scratch / "demo").mkdir()
    dist.run([programs / "late", "demo"], scratch / "demo", alone)


def test(programs: Path, arguments: Sequence[str]) -> None:
    """Install every extra and what the tests need, and run them; their output is shown.

    Raises:
        SystemExit: a package is not to be had for this Python, or a test failed.
    """
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", programs / "python"]
    dist.fetch([*uv, "--require-hashes", "-r", "requirements-dev.lock"])
    command = [programs / "python", "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    code = subprocess.run(command, cwd=dist.ROOT, check=False).returncode
    if code:
        raise SystemExit(f"the tests ended with {code}")


def prove(python: str, wheel: Path, tests: Sequence[str], scratch: Path) -> str:
    """Return what this Python calls itself, once it has done all of it.

    Raises:
        SystemExit: a step failed.
    """
    programs = dist.install(python, wheel, scratch / "environment")
    name = dist.run([programs / "python", "-c", WHO], scratch).strip()
    use(programs, scratch)
    print(f"[pythons] {name}: the README's code and the demo run; now the tests", flush=True)
    test(programs, tests)
    return name


def prove_each(
    pythons: Sequence[str], prove_one: Callable[[str], str], *, are_given: bool
) -> tuple[list[str], bool]:
    """Return a line for each Python, and whether all are well.

    One that is not here is a failure if somebody asked for it, or if no other is here.
    """
    lines, is_well, tried = [], True, 0
    for name in pythons:
        python = dist.find(name)
        if python is None:
            lines.append(f"{name}: not here")
            is_well = is_well and not are_given
            continue
        tried += 1
        try:
            lines.append(f"{python}: {prove_one(python)}: all well")
        except SystemExit as failed:
            lines.append(f"{python}: failed: {failed}")
            is_well = False
    return lines, is_well and tried > 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make pythons", description="Try the wheel on Pythons.")
    parser.add_argument("--tests", help="arguments of pytest, in place of the unit tests")
    parser.add_argument("pythons", nargs="*", help="paths, or names on PATH or of pyenv's")
    given = parser.parse_args(arguments)
    tests = shlex.split(given.tests) if given.tests else UNIT_TESTS
    with tempfile.TemporaryDirectory(prefix="late-pythons-") as name:
        wheel = build(Path(name))

        def prove_one(python: str) -> str:
            scratch = Path(tempfile.mkdtemp(dir=name))
            return prove(python, wheel, tests, scratch)

        lines, is_well = prove_each(
            given.pythons or PYTHONS, prove_one, are_given=bool(given.pythons)
        )
    print("\n".join(f"[pythons] {line}" for line in lines))
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())

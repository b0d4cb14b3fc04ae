"""Celery's own tests, from its source distribution, against `late.celery`.

    python -m tests.support.celery_page                # writes docs/celery-tests.md
    python -m tests.support.celery_suite [TEST ...]    # prints each outcome

Their sources are read and not kept: a copy in a temporary folder runs with the package `celery` of
`tests.support.celery_names`, on SQLite. The page says which tests pass, and of each other why not.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".late" / "celery"
VERSION = "5.7.0"
SHA256 = (
    "6a5dfcf6662287204f009a02002b9e66c83d4105e47ebabdc7079108772fc6f0"  # pragma: allowlist secret
)
RUN = (
    "t/integration/test_tasks.py",
    "t/unit/app/test_app.py::test_shared_task",
    "t/unit/tasks/test_result.py::test_EagerResult",
    "t/unit/tasks/test_tasks.py",
)
REPLACED = (
    ("TIMEOUT = 10", "TIMEOUT = 90"),
    ("timeout=10)", "timeout=90)"),
    # The registry is a dictionary; the app registers.
    ("app.tasks.register(", "app.register_task("),
)
HELPERS = ("t/integration/tasks.py", "t/unit/tasks/unit_tasks.py")


class Outcome(msgspec.Struct, frozen=True):
    """What became of one test."""

    test: str
    """Its path, class and name; cases of parameters are told apart."""
    outcome: str
    """passed, skipped by itself, absent (a name is not there), refused, or failed."""
    said: str
    """The name, or the message."""


class NoSource(Exception):
    """The source distribution cannot be had."""


def source() -> Path:
    """Return the source distribution, from the cache or from the package index.

    Raises:
        NoSource: it cannot be downloaded.
    """
    found = CACHE / f"celery-{VERSION}.tar.gz"
    if not found.exists():
        command = ["pip", "download", "-q", "--no-binary", ":all:", "--no-deps", "--dest",
                   str(CACHE), "--no-build-isolation", f"celery=={VERSION}"]  # fmt: skip
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
        if done.returncode or not found.exists():
            raise NoSource(done.stderr.strip()[-200:])
    if hashlib.sha256(found.read_bytes()).hexdigest() != SHA256:
        raise NoSource(f"{found.name} is another file than the one that is known")
    return found


def copy(archive: Path, folder: Path) -> None:
    """Write the tests into `folder`, with what is ours in place of theirs."""
    with tarfile.open(archive) as packed:
        for name in (*{each.partition("::")[0]: None for each in RUN}, *HELPERS):
            member = packed.extractfile(f"celery-{VERSION}/{name}")
            assert member is not None
            text = member.read().decode()
            for theirs, ours in REPLACED:
                text = text.replace(theirs, ours)
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for parent in path.parents:
                if parent == folder:
                    break
                (parent / "__init__.py").touch()
            path.write_text(text)
    names = 'TEST_BACKEND = "late"\nget_active_redis_channels = get_redis_connection = None\n'
    (folder / "t/integration/conftest.py").write_text(names)
    (folder / "t/unit/conftest.py").touch()


def run(archive: Path, *only: str) -> list[Outcome]:
    """Run the tests in a process of their own, and return the outcomes by name."""
    with tempfile.TemporaryDirectory(prefix="late-celery-") as name:
        folder, outcomes = Path(name), Path(name, "outcomes")
        copy(archive, folder)
        command = ["pytest", "-q", "-p", "tests.support.celery_names", "-p", "no:cacheprovider",
                   "-p", "no:asyncio", "-W", "ignore", "--tb=native", "-o", "python_classes=test_*",
                   "-c", os.devnull, "--rootdir", name,
                   *(only or RUN)]  # fmt: skip
        environment = {
            **os.environ,
            "LATE_CELERY_OUTCOMES": str(outcomes),
            "LATE_CELERY_URL": f"sqlite:///{folder / 'late.db'}",
            "PYTHONPATH": os.pathsep.join((name, str(ROOT))),
        }
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True,
            text=True, timeout=1_500,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stdout[-4_000:] + done.stderr[-2_000:])
        found = [msgspec.convert(json.loads(line), Outcome)
                 for line in outcomes.read_text().splitlines()]  # fmt: skip
    return sorted(found, key=lambda outcome: outcome.test)


if __name__ == "__main__":
    for each in run(source(), *sys.argv[1:]):
        print(f"{each.outcome:8} {each.test}  {each.said[:150]}")

"""Workers and producers of the last release beside those of this version, over one database.

`tests/releases` has the code of the release, as its commit had it: without the page, Celery and
Django. It runs with the packages of this environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from late.schema import migrate
from late.schema.version import SCHEMA_VERSION
from tests.databases import PRESENT
from tests.integration.kill_kit import Fleet, until

RELEASES = Path(__file__).parents[1] / "releases"
LAST, SCHEMA = "0.2.0", "0015"
STORES = [backend for backend in PRESENT if backend.name in ("sqlite", "postgres")]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release as an installer leaves it."""
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(RELEASES / f"late-{LAST}.tar.xz") as packed:
        # Python 3.11.2, as Debian 12 has it, knows no filter yet; from 3.14 on it is the default.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        packed.extractall(folder, **safe)  # type: ignore[arg-type]
    metadata = folder / f"late_queue-{LAST}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: late-queue\nVersion: {LAST}\n")
    return folder


class Side:
    """The processes of one version.

    Args:
        path: the folder of its code; None: that of this environment.
    """

    def __init__(self, url: str, folder: Path, path: Path | None = None) -> None:
        folder.mkdir()
        places = [str(path)] if path else []
        # The current folder must not come first: it has the code of this version.
        paths = {"PYTHONPATH": os.pathsep.join([*places, str(RELEASES)]), "PYTHONSAFEPATH": "1"}
        self.url = url
        self._environment = {
            **os.environ, **paths, "LATE_TEST_KILL_URL": url, "LATE_TEST_KILL_DIR": str(folder)
        }  # fmt: skip
        self.fleet = Fleet(url, folder, paths, app="shop:app")

    def run(self, *arguments: str) -> str:
        """Run Python with these arguments, and return what it says."""
        ended = subprocess.run(
            [sys.executable, *arguments], env=self._environment, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def late(self, *arguments: str) -> str:
        return self.run("-m", "late", *arguments, "--url", self.url)

    def enqueue(self, first: int, last: int) -> None:
        self.run(str(RELEASES / "shop.py"), str(first), str(last))


@pytest.fixture
def sides(empty_url: str, tmp_path: Path, code: Path) -> Iterator[tuple[Side, Side]]:
    old, new = Side(empty_url, tmp_path / "old", code), Side(empty_url, tmp_path / "new")
    yield old, new
    old.fleet.close()
    new.fleet.close()


@pytest.mark.parametrize("backend", STORES, ids=lambda backend: backend.name, indirect=True)
def test_both_run_tasks_of_both_and_take_over_from_each_other(sides: tuple[Side, Side]) -> None:
    old, new = sides

    def ran(last: int) -> bool:
        return old.fleet.starts().keys() | new.fleet.starts().keys() == set(range(last))

    # Given a worker of the release that runs its tasks, while the schema becomes newer
    assert old.run("-m", "late", "--version") == f"late {LAST}\n"
    old.late("migrate")
    old.fleet.start()
    until(lambda: old.fleet.is_up(old.fleet.processes[0]), old.fleet)
    old.enqueue(0, 100)
    new.late("migrate")
    until(lambda: ran(100), old.fleet)
    # When a worker of this version comes beside it, and both enqueue, then each runs some
    new.fleet.start()
    until(lambda: new.fleet.is_up(new.fleet.processes[0]), new.fleet)
    new.enqueue(100, 200)
    old.enqueue(200, 300)
    until(lambda: ran(300), new.fleet)
    # When the new one is killed with tasks before it, then another takes them over
    new.enqueue(300, 500)
    new.fleet.kill()
    old.enqueue(500, 600)
    if old.fleet.processes[0].poll() is not None:
        new.fleet.start()
    until(lambda: ran(600), old.fleet)
    # When the old one is killed in its turn, then one of this version does
    old.enqueue(600, 800)
    old.fleet.kill()
    new.fleet.start()
    until(lambda: ran(800), new.fleet)
    assert set(new.fleet.stop()) == {0}, new.fleet.logs()
    assert "nothing broken" in new.late("verify")
    assert migrate.current(new.url) == SCHEMA_VERSION


@pytest.mark.parametrize("backend", STORES, ids=lambda backend: backend.name, indirect=True)
def test_the_release_does_not_start_on_the_newer_schema(sides: tuple[Side, Side]) -> None:
    old, new = sides
    new.late("migrate")
    old.fleet.start()
    assert old.fleet.processes[0].wait(300) != 0
    assert f"newer than the {SCHEMA} of this late" in old.fleet.logs()

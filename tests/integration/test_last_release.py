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

from late.config import package_version
from late.control import Control
from late.schema import migrate
from late.schema.tables import SHARDS_DEFAULT
from late.schema.version import SCHEMA_VERSION
from tests.databases import PRESENT
from tests.integration.kill_kit import Fleet, until

RELEASES = Path(__file__).parents[1] / "releases"
LAST, SCHEMA = "0.2.0", "0015"
STORES = [backend for backend in PRESENT if backend.name in ("sqlite", "postgres", "spanner")]


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


def have_half_each(url: str) -> bool:
    with Control(url) as control:
        workers = control.status.read(limit=1).workers
    return [worker.shards for worker in workers] == [SHARDS_DEFAULT / 2] * 2


def has_open(url: str, version: str) -> bool:
    """Tell whether the journal has open tasks of shards of a worker of this version."""
    with Control(url) as control:
        status = control.status.read(limit=1)
    owners = {worker.worker_id for worker in status.workers if worker.version.startswith(version)}
    return any(shard.in_flight for shard in status.shards if shard.owner in owners)


@pytest.mark.parametrize("backend", STORES, ids=lambda backend: backend.name, indirect=True)
def test_both_run_tasks_of_both_and_take_over_from_each_other(
    sides: tuple[Side, Side], tmp_path: Path
) -> None:
    old, new = sides
    hold = tmp_path / "hold"

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
    # When a worker of this version has half of the shards, and both enqueue, then each runs some
    new.fleet.start()
    until(lambda: have_half_each(new.url), new.fleet, every_s=0.5)
    new.enqueue(100, 200)
    old.enqueue(200, 300)
    until(lambda: ran(300), new.fleet)
    assert all(max(side.fleet.starts(), default=0) >= 100 for side in sides)
    # When the new one is killed, then the old one reads its journal and runs what it had open
    hold.touch()
    new.enqueue(300, 500)
    until(lambda: has_open(new.url, package_version()), new.fleet, every_s=0.5)
    new.fleet.kill()
    hold.unlink()
    old.enqueue(500, 600)
    until(lambda: ran(600) and not has_open(new.url, LAST), old.fleet, every_s=0.5)
    # When the old one is killed in its turn, then another of this version does
    hold.touch()
    old.enqueue(600, 800)
    until(lambda: has_open(new.url, LAST), old.fleet, every_s=0.5)
    old.fleet.kill()
    hold.unlink()
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

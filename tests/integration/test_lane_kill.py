"""Worker processes that serve some lanes: whose tasks run where, also when one is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import late
from late.control import Control
from late.control.views import WorkerStatus
from late.model.lanes import Lane
from late.tailer.placement import lanes_of
from tests.integration.kill_kit import commit

BULK = Lane("bulk", 1024, 2)
SERVICE = """
import os

import late

app = late.App(os.environ["SHOP_URL"])


@app.task
def note(n: int) -> None:
    with open(os.environ["SHOP_OUT"], "a") as out:
        out.write(f"{n} {os.environ['SHOP_NAME']}\\n")
"""


class Shop:
    """A service, its worker processes by name, and which of them ran what."""

    def __init__(self, url: str, folder: Path) -> None:
        (folder / "lane_shop.py").write_text(SERVICE)
        self.url, self.folder, self.out = url, folder, folder / "out"
        self.out.touch()
        self.app = late.App(url)
        self.note = self.app.task(note)
        self.control = Control(url)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.control.lanes.create(BULK.name, BULK.shards)

    def start(self, name: str, *options: str, **environment: str) -> None:
        """Start a worker process, and wait until the others see it."""
        before = len(self.live())
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "late.cli", "worker", "lane_shop:app", *options],
                cwd=self.folder, stderr=log,
                env=os.environ | environment
                | {"SHOP_URL": self.url, "SHOP_OUT": str(self.out), "SHOP_NAME": name,
                   "LATE_LEASE_TTL_S": "3"},
            )  # fmt: skip
        self.until(lambda: len(self.live()) > before)

    def put(self, n: int, lane: Lane) -> None:
        commit(self.url, self.app, [self.note.options(lane=lane.name).call(n)])

    def ran(self) -> dict[int, str]:
        """Return who ran each task. A worker that stalls for longer than its lease may repeat what
        it had not recorded; no other one runs it."""
        lines = {tuple(line.split()) for line in self.out.read_text().splitlines()}
        found = {int(n): who for n, who in lines}
        assert len(found) == len(lines)
        return found

    def live(self) -> list[WorkerStatus]:
        return list(self.control.status.read().workers)

    def owners(self, lane: Lane) -> set[str | None]:
        """Return the live owners of the shards of a lane; None: it has none."""
        shards = range(lane.first_shard, lane.first_shard + lane.shards)
        found = self.control.status.read().shards
        return {
            each.owner if each.owner_live else None for each in found if each.shard_id in shards
        }

    def unsettled(self) -> int:
        return sum(each.depth.n + each.in_flight.n for each in self.control.status.read().queues)

    def until(self, condition: Callable[[], Any]) -> None:
        asked = time.monotonic()
        deadline = asked + 120
        while not condition():
            took_s = time.monotonic() - asked
            assert time.monotonic() < deadline, self.logs()
            assert all(each.poll() is None for each in self.processes.values()), self.logs()
            # What asks all the time takes the processor from the workers.
            time.sleep(max(0.05, 3 * took_s))
            asked = time.monotonic()

    def logs(self) -> str:
        return "\n".join(each.read_text() for each in self.folder.glob("*.log"))

    def kill(self, name: str) -> None:
        """Kill a worker, and wait until its lease is over."""
        process = self.processes.pop(name)
        before = len(self.live())
        process.kill()
        process.wait()
        self.until(lambda: len(self.live()) < before)


def note(n: int) -> None: ...


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(url, tmp_path)
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()
        made.control.close()


def test_a_lane_is_worked_by_its_own_workers_and_by_those_of_all_lanes(shop: Shop) -> None:
    shop.start("bulk", "--lanes", "bulk")
    shop.start("default", LATE_LANES="default")
    for n in range(20):
        shop.put(n, BULK if n < 10 else Lane())
    shop.until(lambda: len(shop.ran()) == 20)
    assert shop.ran() == {n: "bulk" if n < 10 else "default" for n in range(20)}
    lanes = [("bulk",), ("default",)]
    shop.until(lambda: sorted(lanes_of(each.version) for each in shop.live()) == lanes)

    shown = subprocess.run(
        [sys.executable, "-m", "late.cli", "status", shop.url],
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    assert "default (lanes bulk)" in shown
    assert "lanes=" not in shown

    shop.until(lambda: not shop.unsettled())  # what is not recorded would be repeated
    shop.kill("bulk")
    shop.until(lambda: shop.owners(BULK) == {None})
    for n in range(20, 30):
        shop.put(n, BULK)
    shop.put(30, Lane())
    shop.until(lambda: 30 in shop.ran())
    # Several heartbeats, and tasks after them: whoever were to take the shards has had the time.
    for n in range(31, 35):
        time.sleep(1.0)
        shop.put(n, Lane())
        shop.until(lambda: n in shop.ran())  # noqa: B023 -- it is called here alone
    assert shop.owners(BULK) == {None}
    assert not shop.ran().keys() & {*range(20, 30)}

    shop.start("all")
    shop.until(lambda: len(shop.ran()) == 35)
    assert {shop.ran()[n] for n in range(20, 30)} == {"all"}


def test_an_unknown_lane_is_told_in_one_line(shop: Shop) -> None:
    for lanes in (["--lanes", "bulk,x"], ["--set", "lanes=bulk,x"]):
        ended = subprocess.run(
            [sys.executable, "-m", "late.cli", "worker", "lane_shop:app", *lanes],
            cwd=shop.folder, env=os.environ | {"SHOP_URL": shop.url},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        *_, last = ended.stderr.splitlines()
        assert last == "late: no lane 'x'; known: bulk, default"
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr
    assert shop.live() == []


def test_each_of_several_processes_serves_the_lanes_of_the_command(shop: Shop) -> None:
    shop.start("two", "--lanes", "bulk", "--processes", "2")
    shop.until(lambda: len(shop.live()) == 2)
    assert {lanes_of(each.version) for each in shop.live()} == {("bulk",)}
    shop.processes["two"].terminate()
    shop.processes.pop("two").wait(120)

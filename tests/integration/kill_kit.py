"""Worker processes over one database, with the witnesses they leave in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from google.api_core.exceptions import Aborted

from late.app.app import App
from late.app.task import Call
from late.control import Control
from late.model.task import TaskId
from late.outbox import connect
from tests.integration.kill_app import app, count

TTL_S = 5.0
"""A heartbeat that waits its turn, on an emulator or a busy machine, must not look like a death."""


class Fleet:
    """Workers of an app, as a supervisor would run them.

    Args:
        environment: what differs for them from this process.
        groups: consumer groups that they serve; the app's own when none.
        app: where they find it.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        groups: Sequence[str] = (),
        app: str = "tests.integration.kill_app:app",
    ) -> None:
        self.folder = folder
        self._app = app
        self.processes: list[subprocess.Popen[bytes]] = []
        self.killed: set[int] = set()
        self._groups = [text for name in groups for text in ("--group", name)]
        self._environment = os.environ | {
            "LATE_TEST_KILL_URL": url,
            "LATE_TEST_KILL_DIR": str(folder),
            "LATE_LEASE_TTL_S": str(TTL_S),
            "LATE_TAKEOVERS_MAX": "16",
            **(environment or {}),
        }

    def start(self) -> None:
        log = (self.folder / f"worker-{len(self.processes)}.log").open("wb")
        with log:
            self.processes.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "late.cli",
                        "worker",
                        self._app,
                        *self._groups,
                    ],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def kill(self) -> None:
        """SIGKILL to the oldest that lives."""
        process = next(p for p in self.processes if p.poll() is None)
        self.killed.add(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> list[int]:
        """SIGTERM to all; exit codes of those that were not killed."""
        living = [p for p in self.processes if p.pid not in self.killed]
        until(lambda: all(self.is_up(p) for p in living), self)
        for process in living:
            process.terminate()
        try:
            return [process.wait(300) for process in living]
        except subprocess.TimeoutExpired:
            raise AssertionError(self.logs()) from None

    def close(self) -> None:
        """End whatever still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def starts(self) -> dict[int, list[int]]:
        """Task number -> ids of the processes that started it."""
        found: dict[int, list[int]] = {}
        for path in self.folder.glob("*.txt"):
            for line in path.read_text().splitlines():
                found.setdefault(int(line), []).append(int(path.stem))
        return found

    def runs(self) -> list[str]:
        """Every line that a handler has left."""
        return [
            line for path in self.folder.glob("*.txt") for line in path.read_text().splitlines()
        ]

    def started(self) -> int:
        """How many starts there were, repeats included: cheap to ask often."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("*.txt"))

    def is_up(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it has begun to work: before that a SIGTERM ends it the hard way."""
        log = self.folder / f"worker-{self.processes.index(process)}.log"
        return "worker_started" in log.read_text()

    def logs(self) -> str:
        return "\n".join(p.read_text()[-2_000:] for p in sorted(self.folder.glob("*.log")))


def until(
    condition: Callable[[], bool], fleet: Fleet, limit_s: float = 300.0, *, every_s: float = 0.05
) -> None:
    """Ask until it holds. A question that takes the processor from the workers is asked for a
    quarter of the time at most."""
    asked = time.monotonic()
    deadline = asked + limit_s
    while not condition():
        took_s = time.monotonic() - asked
        assert time.monotonic() < deadline, fleet.logs()
        time.sleep(max(every_s, 3 * took_s))
        asked = time.monotonic()


def settled(url: str) -> bool:
    """Nothing is waiting, running or parked any more."""
    with Control(url) as control:
        return all(
            q.depth.n + q.in_flight.n + q.parked.n == 0 for q in control.status.read().queues
        )


def enqueue(url: str, numbers: range) -> None:
    """In one transaction."""
    commit(url, app, [count.call(n) for n in numbers])


def commit(url: str, app: App, calls: Sequence[Call]) -> list[TaskId]:
    """Enqueue `calls` in one transaction; an aborted one is run again, as every producer does."""
    while True:
        try:
            with connect(url) as tx:
                ids = app.enqueue_many(tx, calls)
        except Aborted:
            continue
        return ids

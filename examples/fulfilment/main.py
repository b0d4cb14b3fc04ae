"""The demo: it runs the service with two workers, kills one, and checks the end of every task."""

from __future__ import annotations

import json as jsonlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from late.control import Control
from late.schema import migrate

from . import witness
from .check import Dead, History, Line, check, owed_steps
from .database import Database, connect
from .service import Bookings, run
from .trips import BadTrips, Trip, generate, read

SPEED = 86_400.0
"""A day of the trips' time passes in a second."""
COUNT = 1_000
STALLED_S = 30.0
"""After this long without progress the demo stops waiting, and the check names what is missing."""
STOP_S = 20.0
POLL_S = 0.1


class Workers:
    """Worker processes, as a supervisor would run them. Their output goes to files."""

    def __init__(self, url: str, folder: Path) -> None:
        package = __package__ or ""
        # The folder that holds the outermost package: the checkout, or site-packages.
        root = Path(__file__).resolve().parents[package.count(".") + 1]
        self._command = [sys.executable, "-m", "late.cli", "worker", f"{package}.app:app"]
        self._environment = os.environ | {
            "FULFILMENT_URL": url,
            witness.VARIABLE: str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH")))),
        }
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            log = self._folder / f"worker-{len(self.processes) + 1}.log"
            with log.open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        self._command,
                        env=self._environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    def kill_one(self) -> int:
        """Send SIGKILL to the first one: no clean-up, no last settlement. Return its process id."""
        self.processes[0].send_signal(signal.SIGKILL)
        self.processes[0].wait()
        return self.processes[0].pid

    @property
    def alive(self) -> int:
        return sum(process.poll() is None for process in self.processes)

    def stop(self) -> list[int]:
        """Ask all to stop, wait, and return the exit codes of those that could be asked."""
        asked = [process for process in self.processes if process.poll() is None]
        for process in asked:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for process in asked:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return [process.returncode for process in asked]

    def last_words(self) -> str:
        """Return the end of each worker's output, to explain a failure."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-2_000:]}"
            for path in sorted(self._folder.glob("worker-*.log"))
        )


def run_demo(
    url: str | None = None,
    trips: Path | None = None,
    count: int = COUNT,
    speed: float = SPEED,
    kill: bool = True,
    json: bool = False,
) -> int:
    """Run the whole job; 0 when every promise was kept, 1 when one was not, 2 for bad input.

    Args:
        url: a database; without it a SQLite file of its own, gone afterwards.
        trips: a CSV with the columns of `trips.COLUMNS`; without it `count` made-up trips.
        speed: how much faster than the trips' own time everything happens.
        kill: whether one of the two workers is killed in the middle.
        json: print the verdict as JSON and no progress.
    """
    console = Console(stderr=json)
    try:
        rows = read(trips) if trips is not None else generate(count)
    except BadTrips as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    if not rows or not speed > 0:
        console.print("nothing to do: at least one trip and a speed above zero are needed")
        return 2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="late-demo-")))
        url = url or f"sqlite:///{folder / 'fulfilment.db'}"
        migrate.upgrade(url)
        database = connect(url, connections=4)
        stack.callback(database.close)
        database.create()
        control = stack.enter_context(Control(url))
        workers = Workers(url, folder)
        stack.callback(workers.stop)
        workers.start(2)
        demo = Demo(database, control, rows, speed, workers, witness.Reader(folder))
        began = time.monotonic()
        demo.run(kill=kill, console=console, quiet=json)
        codes = workers.stop()
        lines = check(demo.history())
        lines.append(
            Line("workers that stopped cleanly", str(2 - kill), str(codes.count(0)), not any(codes))
        )
        ok = all(line.ok for line in lines)
        report(console, lines, time.monotonic() - began, database.store, json=json)
        if not ok:
            console.print(workers.last_words(), markup=False, highlight=False)
    return 0 if ok else 1


class Demo:
    """One run: books in a thread, watches the witness files, kills in the middle."""

    def __init__(
        self,
        database: Database,
        control: Control,
        trips: Sequence[Trip],
        speed: float,
        workers: Workers,
        reader: witness.Reader,
    ) -> None:
        self._database = database
        self._control = control
        self._trips = trips
        self._speed = speed
        self._workers = workers
        self._reader = reader
        self._done: set[tuple[int, str]] = set()
        self._bookings = Bookings()
        self._killed: set[int] = set()
        self._first_id = database.next_id()

    def run(self, *, kill: bool, console: Console, quiet: bool) -> None:
        """Run until everything is done, or nothing has moved for `STALLED_S`."""
        stop = threading.Event()
        columns = (
            TextColumn("{task.description:>14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with (
            ThreadPoolExecutor(1) as service,
            Progress(*columns, console=console, disable=quiet) as bars,
        ):
            booked = bars.add_task("trips booked", total=len(self._trips))
            done = bars.add_task("steps done", total=None)
            booking = service.submit(
                run,
                self._database,
                self._trips,
                self._bookings,
                first_id=self._first_id,
                speed=self._speed,
                stop=stop,
            )
            try:
                moved_at = time.monotonic()
                while time.monotonic() - moved_at < STALLED_S and self._workers.alive:
                    if self._step():
                        moved_at = time.monotonic()
                    half = len(self._bookings) >= len(self._trips) / 2
                    if kill and half and not self._killed and self._done:
                        self._killed.add(self._workers.kill_one())
                        bars.console.print(f"killed worker {min(self._killed)} with SIGKILL")
                    owed = owed_steps(self._bookings.committed) if booking.done() else None
                    bars.update(booked, completed=len(self._bookings))
                    bars.update(done, completed=len(self._done), total=owed)
                    if owed == len(self._done) and self._poison_is_caught():
                        break
                    time.sleep(POLL_S)
            finally:
                stop.set()
            booking.result()

    def _step(self) -> bool:
        """Read what the workers wrote; return True if there was anything."""
        before = len(self._bookings)
        fresh = self._reader.read()
        self._done |= {(one.trip, one.step) for one in fresh if one.event == "done"}
        return bool(fresh) or len(self._bookings) > before

    def _poison_is_caught(self) -> bool:
        poison = sum(one.poison for one in self._bookings.committed.values())
        return len(self._dead()) >= poison

    def _dead(self) -> list[Dead]:
        """Return the dead letters of this run's trips."""
        letters = []
        for one in self._control.dead_letters.find(payload=True):
            trip_id = jsonlib.loads(one.payload or "{}").get("trip_id", -1)
            if trip_id >= self._first_id:
                letters.append(Dead(trip_id, one.name.rpartition(".")[2], one.reason))
        return letters

    def history(self) -> History:
        """Read everything once more, now that the workers have ended."""
        self._step()
        return History(
            bookings=self._bookings,
            runs=self._reader.runs,
            effects=self._database.effects(self._first_id),
            dead=self._dead(),
            booked_at_us=self._database.booked(self._first_id),
            killed=self._killed,
        )


def report(
    console: Console, lines: Sequence[Line], took_s: float, store: str, *, json: bool
) -> None:
    """Print the verdict: a table for people, or one JSON object on standard output."""
    ok = all(line.ok for line in lines)
    if json:
        verdict = {"ok": ok, "store": store, "seconds": round(took_s, 1)}
        print(jsonlib.dumps(verdict | {"checks": [asdict(line) for line in lines]}))
        return
    table = Table("", "expected", "found", "", title=f"Every task accounted for, on {store}")
    for column in table.columns[1:3]:
        column.justify = "right"
    for line in lines:
        mark = "[green]kept[/]" if line.ok else "[bold red]BROKEN[/]"
        table.add_row(line.what, line.expected, line.found, mark)
    console.print(table)
    verdict_text = "all promises kept" if ok else "[bold red]a promise was broken[/]"
    console.print(f"{verdict_text}, {took_s:.1f} s")

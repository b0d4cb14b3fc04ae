"""The loop of a storm: start a fleet, produce, break things, heal, drain, judge."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import text

from late.control import Control
from late.schema.engine import make_engine, reading, write
from late.store import open_store
from tests.chaos import figures
from tests.chaos.faults import Breaking
from tests.chaos.fleet import PATIENCE_S, Fleet
from tests.chaos.judge import Clock, Report, judge, left
from tests.chaos.plan import OWN_FAULT, Size, faults, lasts_s
from tests.chaos.producers import TABLE, Spec
from tests.chaos.target import Target
from tests.support.history import Recorder

LOOK_EVERY_S = 1.0
"""How often the storm looks how much waits."""
ADOPTED = "schedules"
QUIET_S = 3.0
"""Longer than a worker needs to hear of a change to a schedule."""
PRODUCE_S = 1800.0
"""Only a broken fleet takes so long for a storm of the full size."""
START_S = 1.0
"""What the producers' time is stretched by, per fault: a process starts after a kill."""


class Storm:
    """One run. Use `run`, or the steps by themselves."""

    def __init__(
        self,
        target: Target,
        size: Size,
        folder: Path,
        *,
        seed: int | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.target = target
        self.size = size
        self.folder = folder
        self.seed = random.randrange(2**32) if seed is None else seed
        self.clock = Clock(open_store(target.url).features.time_resolution_s)
        settings = {
            "LATE_LEASE_TTL_S": f"{target.ttl_s:g}",
            "LATE_TAKEOVERS_MAX": "32",
            "LATE_CHAOS_SHARDS": str(size.shards),
        }
        self._environment = settings | (environment or {})
        self._recorder = Recorder(folder)
        self._began = time.monotonic()
        self._calm_since: float | None = None
        self._owned_s: float | None = None
        self._drained_s = 0.0
        self.fleet: Fleet

    def run(self) -> Report:
        """All of it. Prints the figures."""
        with self.begun():
            for _ in range(self.size.workers):
                self.fleet.add()
            self.produce()  # they take as long to come up as workers do
            self.until(self.fleet.all_up)
            self.rage()
            self.calm()
        return self.judged()

    # ------------------------------------------------------------------ steps

    @contextmanager
    def begun(self) -> Iterator[None]:
        """The fleet, without anyone in it; whatever runs at the end is ended."""
        with Control(self.target.url) as control:
            control.queues.change("queue", OWN_FAULT, {"smart_retry": False})
            if self.size.shards != 8:
                control.lanes.set_shards("default", self.size.shards)
        with self.target.networks as networks:
            self.fleet = Fleet(self.folder, self._environment, networks.make)
            watching = threading.Event()
            watch = threading.Thread(target=self._watch, args=(watching,), daemon=True)
            watch.start()
            try:
                yield
            finally:
                watching.set()
                watch.join(PATIENCE_S)  # it may be in a call to a server that hangs
                self.fleet.close()

    def produce(self) -> None:
        size = self.size
        lasts = lasts_s(self.seed, size) + START_S * sum(size.faults.values())
        transactions = size.tasks / size.producers / 3 / 0.7  # of three tasks, most are committed
        for number in range(size.producers):
            self.fleet.produce(
                Spec(
                    number=number,
                    seed=self.seed,
                    traits=self.target.traits,
                    size=size,
                    quota=-(-size.tasks // size.producers),
                    pause_s=lasts / transactions,
                )
            )

    def rage(self) -> None:
        """One fault after the other. Those that last end by themselves."""
        self.until(self._working)
        breaking = Breaking(self.target, self.fleet, self.until)
        lasting: list[threading.Thread] = []
        for fault in faults(self.seed, self.size):
            time.sleep(fault.pause_s)
            thread = breaking.begin(fault)
            if thread is not None:
                thread.start()
                lasting.append(thread)
        for thread in lasting:
            thread.join()

    def finish_producing(self) -> None:
        """The producers come to their end as soon as they have committed enough."""
        (self.folder / "over").touch()
        self.until(self.fleet.produced, PRODUCE_S)

    def calm(self, drain_s: float = PRODUCE_S) -> None:
        """Every fault has ended: nothing is restarted or touched until all is done.

        Args:
            drain_s: after which the fleet is stopped, whatever is left.
        """
        fleet = self.fleet
        fleet.record("calm")
        self._calm_since = time.monotonic()
        self.finish_producing()
        self.target.heal()
        self.until(fleet.all_up)
        deadline = time.monotonic() + drain_s
        while not self._drained() and time.monotonic() < deadline:
            time.sleep(0.2)
        self._drained_s = time.monotonic() - self._calm_since
        codes = fleet.stop()
        assert not any(codes), f"exit codes {codes}\n{fleet.logs()}"

    def judged(self) -> Report:
        report = judge(
            self.folder,
            self.target.url,
            self.clock,
            store=self.target.name,
            seed=self.seed,
            workers=self.size.workers,
            seconds=time.monotonic() - self._began,
            owned_s=self._owned_s,
            drained_s=self._drained_s,
        )
        remains = left(self.target.url)
        if remains:
            report.broken["left"] = remains[:20]
        print(report.line())
        figures.keep(msgspec.structs.asdict(report))
        return report

    def note(self, f: Any, **fields: Any) -> None:
        """Something that the storm itself does, for the history."""
        self._recorder.write(f, **fields)

    def adopt(self, tasks: Sequence[str]) -> None:
        """These were enqueued by the database's side, and are committed: schedules did it."""
        for task in tasks:
            self.note("enqueue", task=task, tx=ADOPTED)
        self.note("commit", tx=ADOPTED)
        engine = make_engine(self.target.url)
        try:
            write(
                engine, lambda c: c.execute(text(f"insert into {TABLE} (tx) values ('{ADOPTED}')"))
            )
        finally:
            engine.dispose()

    def quiet(self, count: Callable[[], int]) -> bool:
        """Whether a count stands still for a while."""
        before = count()
        time.sleep(QUIET_S)
        return count() == before

    def until(self, condition: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            self.fleet.supervise()
            assert time.monotonic() < deadline, f"seed {self.seed}\n{self.fleet.logs()}"
            time.sleep(0.1)

    # ------------------------------------------------------------------ looks

    def _watch(self, end: threading.Event) -> None:
        """Write down how much waits in each shard; not while the database is down."""
        engine = make_engine(self.target.url)
        try:
            with Control(self.target.url) as control:
                while not end.wait(LOOK_EVERY_S):
                    # Whatever a driver raises while its server is away; the next look sees more.
                    with suppress(Exception):
                        shards = control.status.read(limit=200).shards
                        self._seen_owned(all(shard.owner_live for shard in shards))
                        for shard in shards:
                            n = shard.lag.n + shard.in_flight
                            place = {"group": shard.group, "shard": shard.shard_id}
                            self._recorder.write("depth", n=n, **place)
                        with reading(engine) as connection:
                            self.clock.sample(connection)
        finally:
            engine.dispose()

    def _seen_owned(self, owned: bool) -> None:
        if owned and self._owned_s is None and self._calm_since is not None:
            self._owned_s = time.monotonic() - self._calm_since

    def _working(self) -> bool:
        """Whether the first task has started: processes take their time to come up."""
        return any(b'"exec_start"' in path.read_bytes() for path in self.folder.glob("*.jsonl"))

    def _drained(self) -> bool:
        with suppress(Exception):  # as above; who waits for this gives up some day
            return not left(self.target.url)
        return False

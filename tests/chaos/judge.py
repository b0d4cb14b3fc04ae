"""The truth of a database after a storm, and what the checker says of the history beside it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from sqlalchemy import Connection, column, select, table

from late.config import WorkerConfig
from late.control import Control
from late.control.sql.last_settlement import journals
from late.control.sql.rows import now_us, open_of
from late.model.task import Usage
from late.scheduler.scheduler import UNRECORDED_MAX
from late.scheduler.usage import LOST
from late.schema.engine import make_engine, reading
from late.schema.tables import dead, settlement, timer
from tests.chaos.producers import TABLE
from tests.support.checker import Truth, check
from tests.support.history import Event, read

FINAL = ("done", "dead", "expired", "discarded", "cancelled")
STUCK_S = 30.0
"""How long a shard with waiting tasks may stand still outside of faults: a loaded machine may need
longer than three leases to start a process."""

DEATHS = {"kill", "died"}
"""Faults that neither stop a worker for a while nor keep the database from it: after them no more
is repeated than `docs/ownership.md` says."""
_SETTINGS = WorkerConfig()
RECORDED_S = _SETTINGS.settle_delay_s + 5.0
"""Within the delay and one commit, which takes its time on a loaded machine."""
REPEATED_MAX = _SETTINGS.concurrency + 2 * (_SETTINGS.settle_batch // 4)
"""What runs, what waits, and what ends during a commit."""

_usages = msgspec.json.Decoder(tuple[Usage, ...])


class Clock:
    """The database's clock against the monotonic one of this machine, which all processes share:
    when a task started is judged by this, and not by what its worker believed.

    Args:
        resolution_s: the step of the database's clock, by which it may be ahead of itself.
    """

    def __init__(self, resolution_s: float) -> None:
        self._step_us = round(resolution_s * 1e6)
        self._ahead_us: int | None = None

    def sample(self, connection: Connection) -> None:
        before_ns = time.monotonic_ns()
        ahead_us = now_us(connection) - before_ns // 1000
        # The reply is later than the question, so each sample is an upper bound; the least counts.
        self._ahead_us = ahead_us if self._ahead_us is None else min(self._ahead_us, ahead_us)

    def at_us(self, t_ns: int) -> int:
        """What the database's clock said at most, at this moment."""
        assert self._ahead_us is not None
        return t_ns // 1000 + self._ahead_us + self._step_us


class Ledger(msgspec.Struct):
    """What the journal's usage adds up to."""

    ended: dict[str, int]
    attempts: int
    lost: int
    """Attempts that began, and whose end nobody could record."""
    outcomes: dict[str, int]


class Report(msgspec.Struct):
    """The figures of one storm. `broken` is empty, or a promise is."""

    store: str
    seed: int
    tasks: int
    """Committed."""
    aborted: int
    """Rolled back, or never committed."""
    starts: int
    faults: dict[str, int]
    duplicates: int
    duplicates_max: int
    """The number of deaths times what one may repeat."""
    recovered: int
    takeovers: int
    seconds: float
    owned_s: float | None
    """From the end of the last fault until every shard was seen to have a live owner."""
    drained_s: float
    """From then until nothing was left; the rest of the production is part of it."""
    late_starts: int
    """Started by an owner after another one had taken the shard: between its expiry and the beat
    that tells it so, when both come back at the same moment."""
    woken_starts: int
    """Those of them that began after a pause, on a shard that was taken while the owner slept."""
    fenced: int
    """Settlements that were refused."""
    unsure: int
    """Settlements whose answer was lost."""
    lateness_p99_s: float | None
    """Of tasks that were due at a time, on a machine as loaded as it was."""
    broken: dict[str, list[str]]

    def line(self) -> str:
        faults = ", ".join(f"{n} {word}" for word, n in sorted(self.faults.items())) or "no faults"
        return (
            f"{self.store}: {self.tasks} tasks, {self.aborted} aborted, {faults}; "
            f"{self.takeovers} leases, {self.recovered} recovered, duplicates {self.duplicates} "
            f"of at most {self.duplicates_max}, {self.late_starts} late starts, "
            f"{self.woken_starts} after a pause, "
            f"{self.fenced} fenced, {self.unsure} unsure, "
            f"timers late by {self.lateness_p99_s} s (p99); owned in "
            f"{self.owned_s} s, drained in {self.drained_s} s, {self.seconds} s in all, "
            f"seed {self.seed}; broken: {self.broken or 'nothing'}"
        )


def truth_of(url: str) -> tuple[Truth, Ledger]:
    """Everything that the database says."""
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            return _truth(connection), _ledger(connection)
    finally:
        engine.dispose()


def _truth(connection: Connection) -> Truth:
    committed = connection.execute(select(column("tx")).select_from(table(TABLE))).scalars()
    journal = connection.execute(
        select(
            settlement.c.consumer_group,
            settlement.c.shard_id,
            settlement.c.seq,
            settlement.c.epoch,
        )
    )
    letters = connection.execute(select(dead.c.consumer_group, dead.c.task_id))
    return Truth(
        committed=frozenset(committed),
        dead=[(group, str(task)) for group, task in letters],
        journal=[(group, shard, seq, epoch) for group, shard, seq, epoch in journal],
    )


def left(url: str) -> list[str]:
    """What is not over: the database was drained, so nothing may be."""
    with Control(url) as control:
        queues = control.status.read().queues
    found = [f"{q.group}/{q.queue}: {q.depth.n} in the log" for q in queues if q.depth.n]
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            # Looked at by itself: a count by queue cannot see an open task whose row is gone.
            found += [
                f"{group}/#{shard}: open {key.task_id}"
                for (group, shard), journal in journals(connection).items()
                for key in open_of(journal.open)
            ]
            found += [f"parked {task}" for task in connection.execute(select(timer.c.task_id))]
    finally:
        engine.dispose()
    return found


def _ledger(connection: Connection) -> Ledger:
    ended: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    attempts = lost = 0
    rows = connection.execute(
        select(settlement.c.consumer_group, settlement.c.usage).where(
            settlement.c.usage.is_not(None)
        )
    )
    for group, text in rows:
        for usage in _usages.decode(text):
            outcomes[usage.outcome] += usage.count
            attempts += usage.attempts
            lost += usage.attempts if usage.outcome == LOST else 0
            ended[group] += usage.count if usage.outcome in FINAL else 0
    return Ledger(dict(ended), attempts, lost, dict(outcomes))


def judge(
    folder: Path,
    url: str,
    clock: Clock,
    *,
    store: str,
    seed: int,
    workers: int,
    seconds: float,
    owned_s: float | None,
    drained_s: float,
) -> Report:
    """Compare the files with the database."""
    events = read(folder)
    events = [
        msgspec.structs.replace(event, at_us=clock.at_us(event.t))
        if event.f == "exec_start"
        else event
        for event in events
    ]
    truth, ledger = truth_of(url)
    truth = msgspec.structs.replace(truth, ended=ledger.ended)
    faults = _faults(events)
    only_deaths = faults.keys() <= DEATHS
    verdict = check(events, truth, stuck_s=STUCK_S, recorded_s=RECORDED_S if only_deaths else None)
    broken = {
        name: [f"{finding.what}: {finding.why}" for finding in found[:20]]
        for name, found in verdict.broken.items()
    }
    tasks, aborted = _enqueued(events, truth)
    starts = sum(event.f == "exec_start" for event in events)
    deaths = _deaths(faults, workers)
    late_starts = list(_late_starts(events))
    report = Report(
        store=store,
        seed=seed,
        tasks=tasks,
        aborted=aborted,
        starts=starts,
        faults=faults,
        duplicates=len(verdict.duplicated),
        duplicates_max=deaths * (REPEATED_MAX if only_deaths else UNRECORDED_MAX),
        recovered=len(verdict.recovered),
        takeovers=sum(event.f == "lease" for event in events),
        seconds=round(seconds, 1),
        owned_s=None if owned_s is None else round(owned_s, 1),
        drained_s=round(drained_s, 1),
        late_starts=len(late_starts),
        woken_starts=sum(woken for woken in late_starts),
        fenced=sum(event.f == "settle" and event.type == "fail" for event in events),
        unsure=sum(event.f == "settle" and event.type == "info" for event in events),
        lateness_p99_s=_lateness(events),
        broken=broken,
    )
    _accounts(report, ledger, events)
    return report


def _accounts(report: Report, ledger: Ledger, events: Sequence[Event]) -> None:
    """What must add up besides the checker's classes."""
    ended = sum(ledger.ended.values())
    if ended != report.tasks:
        report.broken["ledger"] = [f"{ended} ends of {report.tasks} committed tasks"]
    # An attempt that ended is counted once; not if its worker died before it could be recorded, or
    # its result came after the shard had gone. Then it may be counted as lost, once as well.
    ends = sum(event.f == "exec_end" for event in events)
    whole = ledger.attempts - ledger.lost
    if whole > ends or (not report.duplicates_max and ledger.attempts != ends):
        report.broken["attempts"] = [f"{whole} in the journal, {ends} ended"]
    if ledger.lost > report.duplicates_max:
        report.broken["lost"] = [f"{ledger.lost} lost > {report.duplicates_max}"]
    if report.duplicates > report.duplicates_max:
        report.broken["bound"] = [f"{report.duplicates} > {report.duplicates_max}"]


def _enqueued(events: Sequence[Event], truth: Truth) -> tuple[int, int]:
    """How many tasks were committed, and how many were not."""
    tx_of = {event.task: event.tx for event in events if event.f == "enqueue"}
    tasks = sum(tx in truth.committed for tx in tx_of.values())
    return tasks, len(tx_of) - tasks


def _faults(events: Sequence[Event]) -> dict[str, int]:
    """How often what was done; a producer may die many times, in its own transaction."""
    producers = {event.p for event in events if event.f == "enqueue"}
    words = Counter(
        "died" if event.target in producers else event.word
        for event in events
        if event.f == "fault" and event.word not in ("calm", "cont")
    )
    return dict(words)


def _deaths(faults: Mapping[str, int], workers: int) -> int:
    """Owner deaths: of one worker, or of all by what hits the database."""
    of_one = sum(
        faults.get(word, 0) for word in ("kill", "stop", "blackhole", "half_open", "delay")
    )
    return of_one + workers * faults.get("kill_server", 0)


def _late_starts(events: Sequence[Event]) -> Iterator[bool]:
    """One per start under an epoch that was over; whether its owner had slept through that."""
    taken: dict[tuple[str, int], list[Event]] = defaultdict(list)
    woken: dict[str, int] = {}
    for event in events:  # in the order of time
        if event.f == "lease":
            taken[event.group, event.shard].append(event)
        elif event.f == "fault" and event.word == "cont":
            woken[event.target] = event.t
        elif event.f == "exec_start":
            newer = [e for e in taken[event.group, event.shard] if e.epoch > event.epoch]
            if newer:
                yield newer[0].t < woken.get(event.p, 0)


def _lateness(events: Sequence[Event]) -> float | None:
    due = {event.task: event.at_us for event in events if event.f == "enqueue" and event.at_us}
    firsts: dict[str, int] = {}
    for event in events:
        if event.f == "exec_start" and event.task in due:
            firsts.setdefault(event.task, event.at_us - due[event.task])
    late = sorted(firsts.values())
    return round(late[len(late) * 99 // 100] / 1e6, 3) if late else None

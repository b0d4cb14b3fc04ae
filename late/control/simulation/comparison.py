"""Run what was read again, as it was and with other knobs, and compare. Pure.

The run with the same knobs is what says how good the others are: its waits are compared with those
that the journal has. Where the journal only has sums, it also decides how they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec

from late.control.simulation.attempts import BURSTS, Attempt, Counted, attempts
from late.control.simulation.fleet import FREE, Fleet, Ran, run
from late.control.simulation.variants import Variant, error_of, limits_of
from late.errors import ConfigError
from late.model.histogram import percentile_us
from late.model.queue_settings import QueueSettings
from late.model.task import Usage
from late.scheduler.limits.limits import LOCAL_POOL

FEW = 100
"""With fewer attempts a p99 is the wait of one."""
SUMMED_MAX = 0.1
SUM_S = 60.0
"""The time that a sum stands for, at least: with more than `SUMMED_MAX` of the attempts in sums,
shorter waits say little of when the attempts came."""
SLOTS = 16
"""The slots of a worker that reports none: the default of `late worker`."""
TRIAL = 4
"""A trial of a reading of sums, or of a drag, has so many times fewer attempts."""
DRAGS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
"""The drags that are tried, see `Fleet.drag`."""
FLOOR_MAX_US = 100_000
"""The most that an attempt waits which nothing holds back."""
_LABELS = ("owner", "late_share", "severity", "objective_s", "closed", "max_backlog")
"""Knobs that change nothing about when an attempt starts."""


class Waits(msgspec.Struct, frozen=True):
    """Waits from the due time to the start, in seconds."""

    p50: float | None
    p95: float | None
    p99: float | None


class Limited(msgspec.Struct, frozen=True):
    """Shares of the time in which tasks of the queue waited, by what held them back."""

    rate: float
    concurrency: float
    slots: float


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """The course of one queue, real or simulated."""

    knobs: str
    """The limits and sizes that it ran with, such as `rate=50 workers=2 slots=16`."""
    wait_s: Waits
    backlog_most: int
    drain_s: float
    """From the greatest backlog until nothing waited."""
    slots_busy: float
    """On average, in the fleet, by all queues."""
    limited: Limited | None
    """Not known of what really happened."""


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `late simulate`."""

    queue: str
    group: str
    target: str
    since_us: int
    until_us: int
    attempts: int
    summed: float
    """The part of the attempts of which only sums of a minute or an hour are kept."""
    bursts: int
    """The bursts in the time of each of those sums that fit best; 0: the attempts came evenly."""
    drag: float
    """The part by which the fleet was slower than its knobs and run times say; see `Fleet`."""
    together: int
    """So many attempts are run as one, so that an answer takes seconds."""
    happened: Course
    replayed: Course
    error: Waits
    """The distance of the replay from what happened, in parts of it."""
    variants: tuple[Course, ...]
    notes: tuple[str, ...]


class Read(msgspec.Struct):
    """The attempts of one group, and its knobs and workers."""

    rows: list[Counted]
    shards: list[int]
    owners: set[str]
    """The owners of the last settlements."""
    owners_all: set[str]
    knobs: dict[str, QueueSettings]
    slots: int | None
    changes: int
    now_us: int = 0
    since_us: int = 0


class _Case:
    """One queue and what its attempts run with."""

    def __init__(self, read: Read, queue: str, jobs: int) -> None:
        self.read, self.queue, self.jobs = read, queue, jobs
        of_target = Counter[str]()
        for usage, _ in self._usage():
            of_target[usage.target] += usage.attempts
        self.target = max(of_target, key=lambda name: of_target[name])
        self.here = self.target == LOCAL_POOL
        self.waits = Counter[int]()
        self.summed = 0
        for usage, is_sum in self._usage():
            if usage.target == self.target:
                self.waits.update(dict(usage.waiting))
                self.summed += usage.attempts if is_sum else 0
        self.floor_us = round(min(percentile_us(self.waits, 0.05) or 0.0, FLOOR_MAX_US))
        slots = (read.slots or SLOTS) if self.here else FREE
        knobs = {name: limits_of(each) for name, each in read.knobs.items()}
        self.fleet = Fleet(max(1, len(read.owners)), slots, knobs)

    def _usage(self) -> Iterator[tuple[Usage, bool]]:
        for row in self.read.rows:
            for usage in row.usage:
                if usage.queue == self.queue:
                    yield usage, row.from_us < row.until_us

    def attempts(self, bursts: int, jobs: int) -> list[Attempt]:
        """Make about `jobs` attempts: a half for the queue, if there are others."""
        return attempts(self.read.rows, self.target, bursts, self.together(jobs))

    def together(self, jobs: int) -> dict[str, int]:
        """Return by queue how many attempts are run as one."""
        counts = Counter[str]()
        for row in self.read.rows:
            for usage in row.usage:
                counts[usage.queue] += usage.attempts if usage.target == self.target else 0
        own = counts[self.queue]
        others = counts.total() - own
        half = max(1, jobs // 2 if others else jobs)
        return {
            name: max(1, -(-(own if name == self.queue else others) // half)) for name in counts
        }

    def run(self, found: Sequence[Attempt], fleet: Fleet) -> Ran:
        """Run the attempts with a fleet."""
        return run(found, fleet, self.queue, self.read.shards, floor_us=self.floor_us)

    def fit(self) -> int:
        """Find the reading of sums, and then the drag, with which the same knobs come nearest to
        what happened. Return the first; the fleet has the second."""
        jobs = self.jobs // TRIAL
        bursts = 0
        if self.summed:
            bursts = min(BURSTS, key=lambda each: self._off(self.attempts(each, jobs), self.fleet))
        made = self.attempts(bursts, jobs)
        fleets = [msgspec.structs.replace(self.fleet, drag=each) for each in DRAGS]
        self.fleet = min(fleets, key=lambda each: self._off(made, each))
        return bursts

    def _off(self, made: Sequence[Attempt], fleet: Fleet) -> float:
        error = _error(_waits(self.run(made, fleet).waits), _waits(self.waits))
        return 2 * abs(error.p99 or 0.0) + abs(error.p95 or 0.0)

    def course(self, fleet: Fleet, ran: Ran) -> Course:
        """Tell of one run."""
        span_us = max(1, self.read.now_us - self.read.since_us)
        shares = {name: min(1.0, us / span_us) for name, us in ran.limited_us.items()}
        knobs = msgspec.structs.asdict(fleet.knobs.get(self.queue, QueueSettings()))
        named = {name: each for name, each in knobs.items() if each is not None}
        return Course(
            knobs=Variant(named, fleet.workers, fleet.slots if self.here else None).text,
            wait_s=_waits(ran.waits), backlog_most=ran.backlog_most, drain_s=ran.drain_us / 1e6,
            slots_busy=ran.slots_busy,
            limited=Limited(*(shares.get(n, 0.0) for n in Limited.__struct_fields__)),
        )  # fmt: skip

    def happened(self, made: Sequence[Attempt], knobs: str) -> Course:
        """Tell what really happened, by the recorded waits."""
        backlog, drain_us = _backlog([each for each in made if each.queue == self.queue])
        span_us = max(each.due_us + each.wait_us + each.busy_us for each in made) - made[0].due_us
        return Course(
            knobs=knobs, wait_s=_waits(self.waits), backlog_most=backlog, drain_s=drain_us / 1e6,
            slots_busy=sum(each.busy_us for each in made) / max(1, span_us), limited=None,
        )  # fmt: skip


def compare(
    read: Read, queue: str, group: str, variants: Sequence[Variant], jobs: int
) -> Simulation:
    """Run what was read, with its knobs and with others.

    Raises:
        ConfigError: a variant has more workers than there are shards.
    """
    case = _Case(read, queue, jobs)
    fleets = [changed(case.fleet, queue, each, len(read.shards)) for each in variants]
    bursts = case.fit()
    fleets = [msgspec.structs.replace(each, drag=case.fleet.drag) for each in fleets]
    made = case.attempts(bursts, jobs)
    replayed = case.course(case.fleet, case.run(made, case.fleet))
    happened = case.happened(made, replayed.knobs)
    count = case.waits.total()
    return Simulation(
        queue=queue, group=group, target=case.target, since_us=read.since_us,
        until_us=read.now_us, attempts=count, summed=case.summed / count,
        bursts=bursts, drag=case.fleet.drag, together=case.together(jobs)[queue],
        happened=happened, replayed=replayed, error=_error(replayed.wait_s, happened.wait_s),
        variants=tuple(case.course(each, case.run(made, each)) for each in fleets),
        notes=(*_doubts(case.summed / count, happened), *_notes(read, queue, case.target, count)),
    )  # fmt: skip


def changed(fleet: Fleet, queue: str, variant: Variant, shards: int) -> Fleet:
    """Return the fleet with the changes of a variant.

    Raises:
        ConfigError: there are fewer shards than workers, so some would have nothing to do.
    """
    workers = variant.workers or fleet.workers
    if workers > shards:
        raise ConfigError(f"workers={workers}: the group has {shards} shards, one each at most")
    knobs = fleet.knobs.get(queue, QueueSettings())
    knobs = msgspec.structs.replace(knobs, **variant.knobs)
    return msgspec.structs.replace(
        fleet,
        workers=workers,
        slots=variant.slots or fleet.slots,
        knobs={**fleet.knobs, queue: knobs},
    )


def _waits(counts: Mapping[int, int]) -> Waits:
    found = (percentile_us(counts, share) for share in (0.5, 0.95, 0.99))
    return Waits(*(None if us is None else us / 1e6 for us in found))


def _error(replayed: Waits, happened: Waits) -> Waits:
    return Waits(
        error_of(replayed.p50, happened.p50),
        error_of(replayed.p95, happened.p95),
        error_of(replayed.p99, happened.p99),
    )


def _backlog(ours: Sequence[Attempt]) -> tuple[int, int]:
    """Return the greatest backlog by the recorded waits, and the time until nothing waited."""
    steps = sorted(
        step
        for each in ours
        for step in ((each.due_us, 1, each.number), (each.due_us + each.wait_us, 0, -each.number))
    )
    sizes = list(accumulate(step[2] for step in steps))
    most = max(sizes, default=0)
    if most <= 0:
        return 0, 0
    place = sizes.index(most)
    end = next((at for at, size in enumerate(sizes[place:], place) if size <= 0), len(sizes) - 1)
    return most, steps[end][0] - steps[place][0]


def _doubts(summed: float, happened: Course) -> Iterator[str]:
    """Yield a warning if the journal's sums are too coarse for the waits."""
    p99 = happened.wait_s.p99 or 0.0
    if summed > SUMMED_MAX and p99 < SUM_S:
        yield (
            f"most waits were shorter than {SUM_S:.0f} s, and a sum says little of when they "
            "were: take the variants as a direction"
        )


def _notes(read: Read, queue: str, target: str, count: int) -> Iterator[str]:
    knobs = read.knobs.get(queue, QueueSettings())
    if count < FEW:
        yield f"{count} attempts are few: a p99 is the wait of one of them"
    if read.changes:
        yield f"changes of the queue's knobs since then: {read.changes}; those of now count"
    if len(read.owners_all) > len(read.owners):
        yield f"{len(read.owners_all)} workers have settled since then; those of the end count"
    if target != LOCAL_POOL:
        yield f"attempts ran at {target}: its own limits and slots are not simulated"
    elif not read.slots:
        yield f"no live worker reports its slots: {SLOTS} each; --slots says another number"
    ignored = [
        name
        for name, value in msgspec.structs.asdict(knobs).items()
        if value is not None and getattr(limits_of(knobs), name) != value and name not in _LABELS
    ]
    if ignored:
        yield f"not simulated: {', '.join(ignored)}"

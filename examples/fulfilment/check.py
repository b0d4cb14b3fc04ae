"""The promises at the end, as counts. Pure: `check(history)` knows no database and no file.

Three records are compared that have nothing to do with each other: what the service committed,
what the witness files say was run, and what the handlers' transactions left in the database.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from .app import outages
from .database import Effect, cents
from .service import Bookings, Promise
from .witness import Run

RUN_AND_UNSETTLED_MAX = 16 + 256
"""The most tasks a worker can have started and not settled: its slots and a settlement batch."""
POISON_STARTS_MAX = 3
STEPS = ("assign_driver", "charge", "receipt", "remind", "inspect_route")


@dataclass(frozen=True, slots=True)
class Dead:
    """One dead letter of this service."""

    trip_id: int
    step: str
    reason: str


@dataclass(slots=True)
class History:
    """All records of one run of the demo."""

    bookings: Bookings
    runs: Sequence[Run] = ()
    effects: Sequence[Effect] = ()
    dead: Sequence[Dead] = ()
    booked_at_us: Mapping[int, int] = field(default_factory=dict)
    killed: Set[int] = frozenset()
    """Process ids of workers that were killed on purpose."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the verdict."""

    what: str
    expected: str
    found: str
    ok: bool


def _equal(what: str, expected: int, found: int) -> Line:
    return Line(what, f"{expected:,}", f"{found:,}", expected == found)


def check(history: History) -> list[Line]:
    """Return a line for each promise: the expected and the found value, `ok` if it was kept."""
    return [
        _equal(
            "trips in the database",
            len(history.bookings.committed),
            len(history.booked_at_us.keys() & history.bookings.committed.keys()),
        ),
        *_done(history),
        *_rolled_back(history),
        *_money(history),
        *_order(history),
        *_failures(history),
        *_duplicates(history),
    ]


def _done(history: History) -> Iterator[Line]:
    """Check that each step of each committed trip ran to its end and left its effect."""
    ran = {(run.trip, run.step) for run in history.runs if run.event == "done"}
    written = {(effect.trip_id, effect.step) for effect in history.effects}
    owed: dict[str, set[int]] = defaultdict(set)
    for promised in history.bookings.committed.values():
        for step in promised.steps:
            owed[step].add(promised.trip_id)
    for step in STEPS:
        both = {trip for trip in owed[step] if (trip, step) in ran and (trip, step) in written}
        yield _equal(f"{step} done", len(owed[step]), len(both))


def _rolled_back(history: History) -> Iterator[Line]:
    """Check that rolled-back transactions left nothing, and no unbooked trip ran."""
    touched = {run.trip for run in history.runs} | {one.trip_id for one in history.effects}
    known = history.bookings.committed.keys() | history.bookings.rolled_back
    count = len(history.bookings.rolled_back)
    ghosts = touched & history.bookings.rolled_back
    rows = history.booked_at_us.keys() & history.bookings.rolled_back
    yield _equal(f"traces of {count:,} rolled-back trips", 0, len(ghosts | rows))
    yield _equal("runs for trips that nobody booked", 0, len(touched - known))


def _money(history: History) -> Iterator[Line]:
    """Check the ledger to the cent, and one receipt a trip, however often `charge` ran."""
    owed = sum(cents(one.total) for one in history.bookings.committed.values())
    charged = sum(one.cents or 0 for one in history.effects if one.step == "charge")
    yield Line("charged, USD", f"{owed / 100:,.2f}", f"{charged / 100:,.2f}", owed == charged)
    receipts: dict[int, set[str]] = defaultdict(set)
    for run in history.runs:
        if run.step == "receipt":
            receipts[run.trip].add(run.task)
    yield _equal("trips with two receipts", 0, sum(len(ids) > 1 for ids in receipts.values()))


def _order(history: History) -> Iterator[Line]:
    """Check that no step was early or out of order; all times are by the database's clock."""
    at = {(effect.trip_id, effect.step): effect.at_us for effect in history.effects}
    early = receipt_first = charge_first = 0
    for trip_id, promised in history.bookings.committed.items():
        booked = history.booked_at_us.get(trip_id, 0)
        charged = at.get((trip_id, "charge"))
        reminded = at.get((trip_id, "remind"))
        early += charged is not None and charged < booked + promised.charge_after_us
        early += reminded is not None and reminded < booked + promised.remind_after_us
        if charged is not None:
            receipt_first += at.get((trip_id, "receipt"), charged) < charged
            charge_first += charged < at.get((trip_id, "assign_driver"), charged + 1)
    yield _equal("started before their time", 0, early)
    yield _equal("receipts before their charge", 0, receipt_first)
    yield _equal("charges before a driver was assigned", 0, charge_first)


def _failures(history: History) -> Iterator[Line]:
    """Check that outages of the payment provider were retried, and the poison task died."""
    committed = history.bookings.committed
    failed = Counter(
        (run.trip, run.attempt)
        for run in history.runs
        if run.event == "fail" and run.step == "charge"
    )
    yield _equal(
        "calls to the payment provider that failed", sum(map(outages, committed)), len(failed)
    )
    poison = {one.trip_id for one in committed.values() if one.poison}
    caught = [one for one in history.dead if one.trip_id in poison and one.step == "inspect_route"]
    yield _equal("poison tasks in the dead letters", len(poison), len(caught))
    yield _equal("other dead letters", 0, len(history.dead) - len(caught))


def _duplicates(history: History) -> Iterator[Line]:
    """Check the repeated runs of one attempt: only the death of a worker explains one."""
    poison = {one.trip_id for one in history.bookings.committed.values() if one.poison}
    starts: dict[tuple[str, int], list[Run]] = defaultdict(list)
    poisoned = 0
    for run in sorted(history.runs, key=lambda run: run.at_ns):
        if run.event != "start":
            continue
        if run.step == "inspect_route" and run.trip in poison:
            poisoned += 1
        else:
            starts[run.task, run.attempt].append(run)
    extra = unexplained = 0
    for again in starts.values():
        extra += len(again) - 1
        for earlier in again[:-1]:
            unexplained += not ({earlier.pid, earlier.parent} & history.killed)
    bound = len(history.killed) * RUN_AND_UNSETTLED_MAX
    yield Line("runs repeated after the kill", f"≤ {bound:,}", f"{extra:,}", extra <= bound)
    yield _equal("repeated without a reason", 0, unexplained)
    # A worker that is killed while the poison task is with it adds one start to the three.
    most = (POISON_STARTS_MAX + len(history.killed)) * len(poison)
    yield Line("starts of the poison task", f"≤ {most:,}", f"{poisoned:,}", poisoned <= most)


def owed_steps(committed: Mapping[int, Promise]) -> int:
    """Return the number of steps to be done in all: the length of the progress bar."""
    return sum(len(promised.steps) for promised in committed.values())

"""The demo's check finds each kind of broken promise, and nothing in a clean history."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from examples.fulfilment.app import outages
from examples.fulfilment.check import Dead, Effect, History, Line, check
from examples.fulfilment.service import Bookings, Promise, is_declined, promise
from examples.fulfilment.trips import COLUMNS, BadTrips, generate, read
from examples.fulfilment.witness import Run

WORKER, KILLED = 100, 200
HOUR_US = 3_600_000_000


def a_run(event: Any, step: str, trip: int, *, attempt: int = 1, at_ns: int = 0) -> Run:
    return Run(event, step, trip, f"{step}-{trip}", attempt, at_ns, WORKER, 1)


def clean_history() -> History:
    """Twenty trips, as they look when everything went well."""
    history = History(Bookings(), [], [], [], {})
    assert isinstance(history.runs, list)
    assert isinstance(history.effects, list)
    assert isinstance(history.dead, list)
    assert isinstance(history.booked_at_us, dict)
    for index, trip in enumerate(generate(20)):
        trip_id = index + 1
        if is_declined(index):
            history.bookings.rolled_back.add(trip_id)
            continue
        promised = promise(index, trip_id, trip, 1.0)
        history.bookings.committed[trip_id] = promised
        history.booked_at_us[trip_id] = 1_000
        due = 1_000 + promised.charge_after_us
        at = {"charge": due, "receipt": due + 5, "remind": 1_000 + promised.remind_after_us}
        for step in promised.steps:
            failures = outages(trip_id) if step == "charge" else 0
            for attempt in range(1, failures + 1):
                history.runs.append(a_run("start", step, trip_id, attempt=attempt))
                history.runs.append(a_run("fail", step, trip_id, attempt=attempt))
            history.runs.append(a_run("start", step, trip_id, attempt=failures + 1))
            history.runs.append(a_run("done", step, trip_id, attempt=failures + 1))
            cents = int(promised.total * 100) if step == "charge" else None
            effect = Effect(trip_id, step, f"{step}-{trip_id}", cents, at.get(step, 1_001))
            history.effects.append(effect)
        if promised.poison:
            history.runs += [a_run("start", "inspect_route", trip_id)] * 3
            history.dead.append(Dead(trip_id, "inspect_route", "killed_worker"))
    return history


def broken(lines: list[Line]) -> set[str]:
    return {line.what for line in lines if not line.ok}


def test_a_clean_history_keeps_every_promise() -> None:
    lines = check(clean_history())
    assert broken(lines) == set()
    assert {line.what: line.expected for line in lines}["assign_driver done"] == "18"


def lose_a_run(history: Any) -> None:
    history.runs.remove(a_run("done", "remind", 1))


def lose_an_effect(history: Any) -> None:
    history.effects[:] = [e for e in history.effects if (e.trip_id, e.step) != (2, "assign_driver")]


def lose_a_trip(history: Any) -> None:
    del history.booked_at_us[1]


def run_a_rolled_back_trip(history: Any) -> None:
    history.runs.append(a_run("start", "charge", 8))


def run_an_unknown_trip(history: Any) -> None:
    history.runs.append(a_run("start", "charge", 999))


def charge_too_much(history: Any) -> None:
    index = next(i for i, e in enumerate(history.effects) if e.step == "charge")
    history.effects[index] = replace(history.effects[index], cents=1)


def send_two_receipts(history: Any) -> None:
    history.runs.append(replace(a_run("start", "receipt", 1), task="another"))


def remind_early(history: Any) -> None:
    index = next(i for i, e in enumerate(history.effects) if e.step == "remind")
    history.effects[index] = replace(history.effects[index], at_us=1_000 + HOUR_US)


def charge_before_assigning(history: Any) -> None:
    index = next(i for i, e in enumerate(history.effects) if e.step == "assign_driver")
    history.effects[index] = replace(history.effects[index], at_us=2**60)


def receipt_before_charge(history: Any) -> None:
    index = next(i for i, e in enumerate(history.effects) if e.step == "receipt")
    history.effects[index] = replace(history.effects[index], at_us=1_000)


def forget_a_retry(history: Any) -> None:
    history.runs[:] = [r for r in history.runs if (r.event, r.trip) != ("fail", 3)]


def lose_the_poison(history: Any) -> None:
    history.dead.clear()


def kill_an_innocent(history: Any) -> None:
    history.dead.append(Dead(1, "charge", "failed"))


def repeat_without_a_death(history: Any) -> None:
    history.runs.append(a_run("start", "charge", 1, at_ns=5))


def let_the_poison_run_on(history: Any) -> None:
    history.runs += [a_run("start", "inspect_route", 6)] * 2


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lose_a_run, {"remind done"}),
        (lose_an_effect, {"assign_driver done", "charges before a driver was assigned"}),
        (lose_a_trip, {"trips in the database"}),
        (run_a_rolled_back_trip, {"traces of 2 rolled-back trips"}),
        (run_an_unknown_trip, {"runs for trips that nobody booked"}),
        (charge_too_much, {"charged, USD"}),
        (send_two_receipts, {"trips with two receipts"}),
        (remind_early, {"started before their time"}),
        (charge_before_assigning, {"charges before a driver was assigned"}),
        (receipt_before_charge, {"receipts before their charge"}),
        (forget_a_retry, {"calls to the payment provider that failed"}),
        (lose_the_poison, {"poison tasks in the dead letters"}),
        (kill_an_innocent, {"other dead letters"}),
        (repeat_without_a_death, {"runs repeated after the kill", "repeated without a reason"}),
        (let_the_poison_run_on, {"starts of the poison task"}),
    ],
)
def test_each_broken_promise_is_named(damage: Callable[[Any], None], found: set[str]) -> None:
    history = clean_history()
    damage(history)
    assert broken(check(history)) == found


def test_a_repeat_after_a_kill_is_within_the_promise() -> None:
    history = clean_history()
    assert isinstance(history.runs, list)
    history.killed = {KILLED}
    history.runs.append(replace(a_run("start", "charge", 1, at_ns=-1), pid=KILLED))
    lines = check(history)
    assert broken(lines) == set()
    assert {line.what: line.found for line in lines}["runs repeated after the kill"] == "1"


def test_generated_trips_are_the_same_for_a_seed_and_in_order() -> None:
    trips = generate(50)
    assert trips == generate(50)
    assert trips != generate(50, seed=1)
    assert all(a.pickup <= b.pickup <= b.dropoff for a, b in itertools.pairwise(trips))
    assert all(trip.total > 0 for trip in trips)


def write(path: Path, **changes: str) -> Path:
    row = dict.fromkeys(COLUMNS, "1") | {
        "pickup": "2019-03-01 10:00:00",
        "dropoff": "2019-03-01 10:20:00",
        "total": "12.95",
    }
    row |= changes
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[name for name in row if row[name] != "(none)"])
        writer.writeheader()
        writer.writerow({name: value for name, value in row.items() if value != "(none)"})
    return path


def test_a_file_is_read_to_the_cent(tmp_path: Path) -> None:
    (trip,) = read(write(tmp_path / "trips.csv", pickup_zone=""))
    assert trip.total == Decimal("12.95")
    assert trip.zone == "unknown"
    promised: Promise = promise(0, 1, trip, 60.0)
    assert promised.charge_after_us == 20_000_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total": "(none)"}, "columns missing: total"),
        ({"total": "ten"}, "line 2: total is no amount: 'ten'"),
        ({"total": "NaN"}, "line 2: total is no amount"),
        ({"pickup": "yesterday"}, "line 2: .*yesterday"),
        ({"dropoff": "2019-02-28 10:00:00"}, "line 2: drop-off .* before pick-up"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_value(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(BadTrips, match=message):
        read(write(tmp_path / "trips.csv", **changes))


def test_no_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadTrips, match=r"none\.csv"):
        read(tmp_path / "none.csv")

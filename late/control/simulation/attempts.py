"""Make attempts of the journal's counts: when each was due, and how long it ran. Pure.

A settlement says how many attempts ended, and has a histogram of their waits and one of their run
times. An attempt of it was due at its end, less its run time, less its wait. Which wait belongs to
which run time is not known, so each is paired with one at a distance.

The ends of one settlement are together. A sum of several settlements has only the stretch of time
in which its attempts ended. Those that waited are put into a number of bursts, evenly over that
time, since a wait comes of tasks that came together; the others ended evenly over it. How many
bursts fit is decided by what the same knobs make of them (`late.control.simulation.comparison`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from late.model.histogram import middle
from late.model.task import ENQUEUED, Histogram, Usage
from late.scheduler.usage import LOST

BURSTS = (0, 1, 2, 3, 4, 6, 10, 30)
"""The numbers of bursts in the stretch of a sum that are tried; 0: all of it is even."""
WAITED = 20
"""An attempt is of a burst if it waited more than the longest wait of its sum, divided by this."""
STRIDE = 0.6180339887498949
"""The golden section: multiples of it are spread evenly over 0..1, however many are taken."""
SECOND_STRIDE = 0.41421356237309503
"""The same for what is not to go with the first: the root of two."""


class Counted(msgspec.Struct, frozen=True):
    """The counts of one row of the journal of one shard."""

    shard_id: int
    from_us: int
    """The earliest time at which its attempts may have ended; `until_us`: they ended together."""
    until_us: int
    usage: tuple[Usage, ...]


class Attempt(NamedTuple):
    """One attempt, or several that a slot runs in a row."""

    due_us: int
    queue: str
    shard_id: int
    busy_us: int
    """The sum of all of them."""
    wait_us: int
    """The wait that was recorded."""
    number: int = 1


def attempts(
    rows: Sequence[Counted], target: str, bursts: int, together: Mapping[str, int] | None = None
) -> list[Attempt]:
    """Return the attempts at one target, ascending by due time.

    Args:
        bursts: those in the stretch of each sum.
        together: by queue, the attempts of one row that are one: a slot runs them in a row.
    """
    of_queue = together or {}
    counted = [
        (row, usage)
        for row in rows
        for usage in row.usage
        if usage.target == target and runs(usage)
    ]
    # A burst comes to all shards at once: what is the longest wait of one is that of all.
    longest: dict[tuple[str, int], int] = {}
    for row, usage in counted:
        key = usage.queue, row.from_us
        longest[key] = max(longest.get(key, 0), round(middle(max(usage.waiting)[0])))
    found = [
        each
        for row, usage in counted
        for each in _of_usage(
            row, usage, bursts, of_queue.get(usage.queue, 1), longest[usage.queue, row.from_us]
        )
    ]
    # By nothing else: among those of one burst the short ones must not be first.
    found.sort(key=attrgetter("due_us"))
    return found


def runs(usage: Usage) -> bool:
    """Tell whether the counts are of attempts whose times are known."""
    return usage.outcome not in (ENQUEUED, LOST) and bool(usage.waiting)


def _of_usage(
    row: Counted, usage: Usage, bursts: int, together: int, longest_us: int
) -> Iterator[Attempt]:
    count = sum(number for _, number in usage.waiting)
    made = -(-count // together)
    waits = _apart(_values(usage.waiting, made), STRIDE)
    busy = _apart(_values(usage.busy, made), SECOND_STRIDE)
    # What a slot is busy with is known exactly, and a histogram has only about it.
    scale = usage.busy_us / max(1, sum(busy))
    span_us, waited = row.until_us - row.from_us, 0
    for place, (wait_us, busy_us) in enumerate(zip(waits, busy, strict=True)):
        each_us = round(busy_us * scale * made / count)
        due_us = row.from_us + span_us * (2 * place + 1) // (2 * made) - each_us - wait_us
        if bursts and span_us and wait_us * WAITED > longest_us:
            free_us = max(0, span_us - longest_us)
            after_us = free_us * (2 * (waited % bursts) + 1) // (2 * bursts)
            due_us = row.until_us - longest_us - free_us + after_us
            waited += 1
        number = (place + 1) * count // made - place * count // made
        yield Attempt(due_us, usage.queue, row.shard_id, round(busy_us * scale), wait_us, number)


def _values(histogram: Histogram, count: int) -> list[int]:
    """Return `count` durations, ascending, that stand for all of a histogram."""
    places = [(index, number) for index, number in histogram if number > 0]
    total = sum(number for _, number in places)
    found, place, passed = [], 0, 0
    for rank in range(count if total else 0):
        while (passed + places[place][1]) * 2 * count <= (2 * rank + 1) * total:
            passed += places[place][1]
            place += 1
        found.append(round(middle(places[place][0])))
    return found or [0] * count


def _apart(values: list[int], stride: float) -> list[int]:
    """Return the values in an order that has nothing to do with their size."""
    places = sorted(range(len(values)), key=lambda place: place * stride % 1.0)
    return [values[place] for place in places]

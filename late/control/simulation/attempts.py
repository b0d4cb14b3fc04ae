"""Make attempts of the journal's counts: when each was due, and how long it ran. Pure.

A settlement says how many attempts ended, and has a histogram of their waits and one of their run
times. An attempt of it was due at its end, less its run time, less its wait. Which wait belongs to
which run time is not known, so each is paired with one at a distance.

The ends of one settlement are together. A sum of several settlements has only the stretch of time
in which its attempts ended. They may have ended evenly over it, whatever they had waited, or been
due as nearly at one moment as their waits allow, as in a burst. `squeeze` is the place between the
two: 0 is even, 1 is a burst. Which one fits is decided by what the same knobs make of it
(`late.control.simulation.comparison`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from late.model.histogram import middle
from late.model.task import ENQUEUED, Histogram, Usage
from late.scheduler.usage import LOST

SQUEEZES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The places between even and a burst that are tried."""
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
    rows: Iterable[Counted], target: str, squeeze: float, together: Mapping[str, int] | None = None
) -> list[Attempt]:
    """Return the attempts at one target, ascending by due time.

    Args:
        together: by queue, the attempts of one row that are one: a slot runs them in a row.
    """
    of_queue = together or {}
    found = [
        each
        for row in rows
        for usage in row.usage
        if usage.target == target and runs(usage)
        for each in _of_usage(row, usage, squeeze, of_queue.get(usage.queue, 1))
    ]
    found.sort()
    return found


def runs(usage: Usage) -> bool:
    """Tell whether the counts are of attempts whose times are known."""
    return usage.outcome not in (ENQUEUED, LOST) and bool(usage.waiting)


def _of_usage(row: Counted, usage: Usage, squeeze: float, together: int) -> Iterator[Attempt]:
    count = sum(number for _, number in usage.waiting)
    made = -(-count // together)
    waits = _apart(_values(usage.waiting, made), STRIDE)
    busy = _apart(_values(usage.busy, made), SECOND_STRIDE)
    span_us, longest = row.until_us - row.from_us, max(waits)
    # What a slot is busy with is known exactly, and a histogram has only about it.
    scale = usage.busy_us / max(1, sum(busy))
    for place, (wait_us, busy_us) in enumerate(zip(waits, busy, strict=True)):
        each_us = round(busy_us * scale * made / count)
        spent_us = each_us + wait_us
        even_us = row.from_us + span_us * (2 * place + 1) // (2 * made) - spent_us
        burst_us = row.until_us - longest - each_us
        burst_us = min(max(burst_us, row.from_us - spent_us), row.until_us - spent_us)
        due_us = even_us + round((burst_us - even_us) * squeeze)
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

"""Counts of a queue, a group or a target over a time, by slots. Pure.

The counts are those of the journal, so every store has them and nobody needs to have watched. A
slot that was not read is a gap and never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from late.control.status.scaling_signals import FAILED
from late.control.status.usage import UsageRead
from late.model.histogram import middle, percentile_us
from late.model.task import CONTROL_QUEUE, ENQUEUED, Usage
from late.web.models.cost import ENDS

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
WINDOWS: Mapping[str, tuple[int, int]] = {
    "1h": (MINUTE_US, 60), "24h": (HOUR_US, 24), "7d": (HOUR_US, 168),
}  # fmt: skip
"""The length of a slot, and the number of slots, of each window."""
SHARES = (0.5, 0.95, 0.99)
SLOWEST = 3
"""Slow slots that are named."""
Key = tuple[str, str, str]
"""(group, queue, target)."""
Kind = Literal["queue", "group", "target"]


class Slot(msgspec.Struct, gc=False):
    """The counts of one key in one slot; additive."""

    arrived: int = 0
    failed: int = 0
    """Attempts that failed."""
    ends: dict[str, int] = {}
    """Tasks that ended, by outcome."""
    waiting: dict[int, int] = {}
    """Attempts by the time from when they were due to their start; see `late.model.histogram`."""
    busy: dict[int, int] = {}
    """Attempts by running time."""

    @property
    def ended(self) -> int:
        return sum(self.ends.values())

    def add(self, usage: Usage) -> None:
        if usage.outcome == ENQUEUED:
            self.arrived += usage.count
            return
        if usage.outcome in ENDS and usage.count:
            self.ends[usage.outcome] = self.ends.get(usage.outcome, 0) + usage.count
        self.failed += usage.attempts if usage.outcome in FAILED else 0
        for counts, more in ((self.waiting, usage.waiting), (self.busy, usage.busy)):
            for index, count in more:
                counts[index] = counts.get(index, 0) + count

    def merge(self, more: Slot) -> None:
        self.arrived += more.arrived
        self.failed += more.failed
        for outcome, count in more.ends.items():
            self.ends[outcome] = self.ends.get(outcome, 0) + count
        for counts, others in ((self.waiting, more.waiting), (self.busy, more.busy)):
            for index, count in others.items():
                counts[index] = counts.get(index, 0) + count


Slots = dict[int, dict[Key, Slot]]
"""Counts by the beginning of their slot."""


def slots_of(counted: UsageRead, slot_us: int) -> Slots:
    """Add up what one read has counted."""
    slots: Slots = {}
    for at_us, (group, usage) in zip(counted.times, counted.usage, strict=True):
        if usage.queue == CONTROL_QUEUE:
            continue
        of = slots.setdefault(at_us // slot_us * slot_us, {})
        key = (group, usage.queue, usage.target)
        if key not in of:
            of[key] = Slot()
        of[key].add(usage)
    return slots


def merge(slots: Slots, more: Slots, most: float = math.inf) -> None:
    """Add `more` to `slots`. A slot that has `most` keys takes no new ones."""
    for at_us, found in more.items():
        of = slots.setdefault(at_us, {})
        for key, slot in found.items():
            if key in of:
                of[key].merge(slot)
            elif len(of) < most:
                of[key] = together([slot])


def together(slots: Iterable[Slot]) -> Slot:
    """Add up slots."""
    found = Slot()
    for each in slots:
        found.merge(each)
    return found


def by_queue(slots: Slots, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], Slots]:
    """Divide slots by group and queue, those of `wanted`: one pass, however many there are."""
    found: dict[tuple[str, str], Slots] = {}
    for at_us, of in slots.items():
        for key, slot in of.items():
            if key[:2] in wanted:
                found.setdefault(key[:2], {}).setdefault(at_us, {})[key] = slot
    return found


class Point(msgspec.Struct, frozen=True):
    """One slot of a window."""

    at_us: int
    until_us: int
    """Its end, or the present in it."""
    slot: Slot | None
    """None is a gap."""

    @property
    def minutes(self) -> float:
        return max(1.0, (self.until_us - self.at_us) / MINUTE_US)


def points(
    slots: Mapping[int, Mapping[Key, Slot]],
    window: str,
    *,
    now_us: int,
    known: tuple[int, int],
    gaps: Sequence[tuple[int, int]] = (),
    takes: Callable[[Key], bool],
    most: float = math.inf,
) -> tuple[Point, ...]:
    """Make a point of each slot of a window: whole minutes, or hours with the present one.

    Args:
        known: the times from which and up to which the journal was read.
        gaps: times within them that were left out.
        takes: whether a key is of what is asked for.
        most: the keys that a slot has at most; one that has them all may lack some.
    """
    slot_us, count = WINDOWS[window]
    minutely = slot_us == MINUTE_US
    end_us = now_us // slot_us * slot_us + (0 if minutely else slot_us)
    found = []
    for at_us in range(end_us - count * slot_us, end_us, slot_us):
        until_us = min(at_us + slot_us, now_us)
        left_out = any(begin < until_us and at_us < end for begin, end in gaps)
        # The present hour is known up to the last read.
        unread = known[1] < (until_us if at_us + slot_us <= now_us else at_us + 1)
        slot = None
        if not (left_out or unread or at_us + slot_us <= known[0]):
            of = slots.get(at_us, {})
            ours = [each for key, each in of.items() if takes(key)]
            slot = together(ours) if ours or len(of) < most else None
        found.append(Point(at_us, until_us, slot))
    return tuple(found)


class Figures(msgspec.Struct, frozen=True):
    """One window in numbers."""

    window: str
    known: int
    """The slots that were read, of `slots`."""
    slots: int
    arrived: int
    done: int
    dead: int
    others: tuple[tuple[str, int], ...]
    """Tasks that ended otherwise, by outcome."""
    failed: int
    run_s: tuple[float | None, ...]
    """Running time at `SHARES`; None without an attempt."""
    late_s: tuple[float | None, ...]
    """The wait from when an attempt was due, likewise."""
    longest_s: float | None
    """The longest of these waits: how old the oldest task became."""

    @property
    def is_whole(self) -> bool:
        return self.known == self.slots

    @property
    def unit(self) -> str:
        return "minutes" if WINDOWS[self.window][0] == MINUTE_US else "hours"


def figures(window: str, found: Sequence[Point]) -> Figures:
    """Add up a window."""
    known = [point.slot for point in found if point.slot is not None]
    whole = together(known)
    others = tuple(sorted(each for each in whole.ends.items() if each[0] not in ("done", "dead")))
    return Figures(
        window, len(known), len(found), whole.arrived, whole.ends.get("done", 0),
        whole.ends.get("dead", 0), others, whole.failed, tuple(quantiles(whole.busy)),
        tuple(quantiles(whole.waiting)), longest(whole.waiting),
    )  # fmt: skip


class Slow(msgspec.Struct, frozen=True):
    """One slot with long run times."""

    at_us: int
    until_us: int
    p95_s: float
    p99_s: float


def slowest(found: Sequence[Point]) -> list[Slow]:
    """Return the slots with the highest p99 of the run time, the highest first."""
    slow = []
    for point in found:
        if point.slot is not None and point.slot.busy:
            _, p95_s, p99_s = quantiles(point.slot.busy)
            slow.append(Slow(point.at_us, point.until_us, p95_s or 0.0, p99_s or 0.0))
    return sorted(slow, key=lambda each: (-each.p99_s, -each.at_us))[:SLOWEST]


def quantiles(counts: Mapping[int, int]) -> Iterator[float | None]:
    """Yield the seconds at each of `SHARES`."""
    for share in SHARES:
        us = percentile_us(counts, share)
        yield None if us is None else us / 1e6


def longest(counts: Mapping[int, int]) -> float | None:
    """Return the seconds of the highest bucket; None without one."""
    return middle(max(counts)) / 1e6 if counts else None


def waited(found: Sequence[Point], now: int) -> tuple[int | None, ...]:
    """Return how many tasks were open or parked at the end of each slot: those of now, less what
    has arrived and more what has ended since. Before a gap, and where that is no count, nobody
    knows."""
    counts: list[int | None] = []
    left: int | None = now
    for point in reversed(found):
        counts.append(left if point.slot is not None else None)
        if point.slot is None or left is None:
            left = None
            continue
        left += point.slot.ended - point.slot.arrived
        left = left if left >= 0 else None
    return tuple(reversed(counts))


def taker(
    kind: Kind, name: str, sees: Callable[[str], bool], group: str = ""
) -> Callable[[Key], bool]:
    """Return what tells whether a key is of a queue (in `group`, if given), a group or a target,
    and of a queue that the caller may see."""

    def takes(key: Key) -> bool:
        of = {"group": key[0], "queue": key[1], "target": key[2]}
        return of[kind] == name and group in ("", key[0]) and sees(key[1])

    return takes

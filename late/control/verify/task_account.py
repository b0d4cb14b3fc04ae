"""The account of one (group, shard), from rows alone: where is each task, and is that one place?

    log = waiting + open + parked + dead + settled

- **waiting**: beyond the cursor of the last settlement;
- **open**: covered by it, and in its `open`;
- **parked**, **dead**: covered, and in the timer table or among the dead letters;
- **settled**: covered and nowhere else. It ended (done, expired, discarded); its row is still here.

A parked or dead task may have outlived its row in the log; an open one may not. A task that is not
settled is in exactly one place: in two, it would run twice. Pure: rows come in, grouped by task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from late.control.verify.problems import Problems
from late.model.task import OpenTask

LOGGED, PARKED, DEAD, KEY, TICK = range(5)
"""Sources of rows: the log, the timers, the dead letters, `late_unique` (who holds a unique
key), `late_schedule` (the unfinished task of the last tick)."""

Row = tuple[str, int, int | None, int, int, str]
"""(task id, source, position, flag, recent, name). `flag` of a logged row: it waits; of a parked
one: nothing will release it. `recent`: not covered where the kept journal begins. `position`: of a
logged row; None where the store has none of its own. `name`: of a key or a schedule."""

_NAMES = ("waiting in the log", "open", "parked", "dead")
_TIMES = {1: "", 2: " twice"}


class Totals(msgspec.Struct):
    """The number of tasks in each place."""

    log: int = 0
    """Rows in the log: the sum of `waiting`, `settled`, and of those open, parked and dead tasks
    whose rows are still there."""
    waiting: int = 0
    open: int = 0
    parked: int = 0
    dead: int = 0
    settled: int = 0

    def __add__(self, other: Totals) -> Totals:
        ours, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Totals(*(a + b for a, b in zip(ours, theirs, strict=True)))


class Account:
    """Takes all rows of one (group, shard), those of one task after the other.

    Args:
        shard: (group, shard).
        open_tasks: of the last settlement.
        findings: where problems go.
    """

    def __init__(
        self, shard: tuple[str, int], open_tasks: Sequence[OpenTask], findings: Problems
    ) -> None:
        self.totals = Totals()
        self.ended_recently = 0
        """Logged tasks that ended within the kept journal: it must have counted at least these."""
        self._shard = shard
        self._findings = findings
        self._open: dict[str, list[int]] = defaultdict(list)
        for key in open_tasks:
            self._open[key.task_id].append(key.position)

    def take(self, rows: Iterable[Row]) -> None:
        """Take all rows, in which those of one task are next to each other."""
        totals = self.totals
        for task_id, group in groupby(rows, key=itemgetter(0)):
            found = list(group)
            opened = self._open.pop(task_id, None)
            _, source, _, flag, recent, _ = found[0]
            if opened is None and len(found) == 1 and source == LOGGED:  # nearly every task
                totals.log += 1
                totals.waiting += flag
                totals.settled += not flag
                self.ended_recently += recent and not flag
            else:
                self._judge(task_id, found, opened or [])
        for task_id, opened in self._open.items():
            self._judge(task_id, [], opened)

    def _judge(self, task_id: str, rows: list[Row], opened: list[int]) -> None:
        logged = [row for row in rows if row[1] == LOGGED]
        waiting = sum(row[3] for row in logged)
        parked = [row for row in rows if row[1] == PARKED]
        dead = sum(row[1] == DEAD for row in rows)
        # After a rebase a record may have another position, above every cursor: then it waits.
        moved = bool(opened) and waiting > 0 and not _at(logged, opened)
        opens = 0 if moved else len(set(opened))
        places = (waiting, opens, len(parked), dead)
        self._count(logged, waiting, opens, parked, dead)

        if opens and not _at(logged, opened):
            self._add("open_gone", task_id, "open, and its record is gone: it can never run")
        if len(opened) > len(set(opened)):
            self._add("open_twice", task_id, f"{len(opened)} times in `open`")
        if sum(places) > 1:
            # Ended and still to come, or to come more than once.
            kind = "ended_twice" if dead else "two_places"
            self._add(kind, task_id, _said(places))
        elif len(logged) > 1:
            self._add("logged_twice", task_id, f"{len(logged)} rows in the log")
        if any(row[3] for row in parked):
            self._add("held_forever", task_id, "parked behind an ordering key, and has none")
        if not (waiting or opens or parked):
            self._ended(task_id, rows, "died" if dead else "ended")

    def _ended(self, task_id: str, rows: list[Row], how: str) -> None:
        """Nothing may wait for a task that has ended."""
        for _, source, _, _, _, name in rows:
            if source == KEY:
                self._add("key_held", task_id, f"{how}, and holds the unique key {name!r}")
            elif source == TICK:
                self._add("tick_held", task_id, f"{how}, and the schedule {name!r} waits for it")

    def _count(
        self, logged: list[Row], waiting: int, opens: int, parked: list[Row], dead: int
    ) -> None:
        totals = self.totals
        totals.log += len(logged)
        totals.waiting += waiting
        totals.open += opens > 0
        totals.parked += len(parked)
        totals.dead += dead
        if opens or parked:
            return
        covered = [row for row in logged if not row[3]]
        totals.settled += 0 if dead else len(covered)
        self.ended_recently += sum(row[4] for row in covered)

    def _add(self, kind: str, task_id: str, what: str) -> None:
        self._findings.add(kind, self._shard, what, task_id=task_id)


def _at(logged: list[Row], opened: list[int]) -> bool:
    """Return True if every key of `open` leads to a record."""
    positions = {row[2] for row in logged}
    return bool(logged) and (None in positions or positions.issuperset(opened))


def _said(places: tuple[int, ...]) -> str:
    named = [
        name + _TIMES.get(count, f" {count} times")
        for name, count in zip(_NAMES, places, strict=True)
        if count
    ]
    return " and ".join(named)

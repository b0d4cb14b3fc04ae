"""A consumer group begins anew in the middle of a simulated world, beside workers that run.

As `late group reset` does it (design note 0012): for each shard a lease without owner under a
higher epoch, and a checkpoint that nobody took. To the beginning of what the log has, or to now.
What is judged is that everything goes on as promised from there: what is read again runs again and
is final once more, what is left out never runs, and what the former owner does is refused.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from late.model.task import Cursor
from tests.simulator.database import Database

SHARE = 0.15
"""Of worlds that have any."""
ALL = 1_000_000


class Reset(msgspec.Struct, frozen=True):
    """An operator resets a group."""

    at_s: float
    group: str
    to: Literal["beginning", "now"]


def draw(rng: random.Random, live_s: float, groups: Sequence[str]) -> tuple[Reset, ...]:
    """None, one or two."""
    if rng.random() > SHARE:
        return ()
    found = [
        Reset(rng.uniform(0.5, live_s), rng.choice(groups), rng.choice(("beginning", "now")))
        for _ in range(rng.choice((1, 1, 2)))
    ]
    return tuple(sorted(found, key=lambda reset: reset.at_s))


def reset(database: Database, asked: Reset) -> None:
    """Carry it out, in one instant: it is one transaction."""
    for shard_id in database.shards:
        journal = database.journals[asked.group, shard_id]
        cursor = Cursor("")
        if asked.to == "now":
            found = database.log.read(shard_id, journal.cursor, ALL)
            cursor = journal.cursor if found is None else found.cursor
        covered = database.log.covering(cursor)
        rows = database.log.rows[shard_id]
        again: set[str] = {record.task_id for record in rows if not covered(record)}
        journal.cursor = cursor
        journal.open = tuple(key for key in journal.open if goes_on(key.task_id, again))
        journal.timers = {k: row for k, row in journal.timers.items() if goes_on(k[1], again)}
        journal.letters = {k: row for k, row in journal.letters.items() if goes_on(k, again)}
        journal.owner = None  # and its marks stay, as at every takeover
        journal.epoch += 1
        database.wrote(journal, "")
        journal.seq += 1
        journal.ids[journal.seq] = f"reset/{journal.epoch}"
        stay = {key.task_id for key in journal.open} | {key[1] for key in journal.timers}
        left = database.truth.reset((asked.group, int(shard_id)), again, stay, journal.epoch)
        if asked.group == database.groups[0]:
            database.let_go(left)
    database.changed["groups"] += 1
    database.note(f"reset {asked.group} {asked.to}")


def goes_on(task_id: str, again: set[str]) -> bool:
    """Whether a task stays where it is: what is read again must not be in two places."""
    return task_id not in again

"""Values that go into a shard's core (events) and come out of it (effects).

Every event carries the database's time where the core needs it: time enters as data, so the same
sequence of events gives the same effects, in production and in a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from late.model.task import Attempt, Cursor, OpenTask, Outcome, Parked, Record, Schedule, TaskId
from late.store.base import Page


class PageRead(msgspec.Struct, frozen=True):
    """The tail read one page from the cursor of the last `Read`."""

    page: Page


class OpenFetched(msgspec.Struct, frozen=True):
    """The records of a `Fetch` that the log still holds."""

    records: Sequence[Record]
    now_us: int


class ParkedLoaded(msgspec.Struct, frozen=True):
    """The answer to a `Load`."""

    request: Load
    parked: Sequence[Parked]
    now_us: int


class LoadFailed(msgspec.Struct, frozen=True):
    """A `Load` or `Fetch` did not reach the store: the core asks again on a later tick."""

    request: Load | Fetch


Care = Literal["trial", "crowd", "none"]
"""Tasks that may start under a mark (`crash_suspects`), by the marks that this worker has: `trial`
with none, where a suspect may start too; `crowd` beside other marked tasks, where no suspect may;
`none` beside a suspect on trial."""


class Grant(msgspec.Struct, frozen=True):
    """Time has passed, and the worker's own pool has room for up to `slots` attempts."""

    now_us: int
    slots: int
    care: Care = "trial"
    rooms: Mapping[str, int] = {}
    """Room in the other pools."""
    background: Mapping[str, int] = {}
    """The part of a pool's room that background tasks may take; all of it where none is named."""


class Finished(msgspec.Struct, frozen=True):
    """Attempts ended."""

    outcomes: Sequence[Outcome]
    now_us: int


class Settled(msgspec.Struct, frozen=True):
    """The settlement that the core last built is in the journal."""

    now_us: int


class SchedulesRead(msgspec.Struct, frozen=True):
    """The recurring tasks that live in this shard, as the database has them now."""

    schedules: Sequence[Schedule]


class Hold(msgspec.Struct, frozen=True):
    """Start nothing more until the settlement that is out is in the journal."""


class Stop(msgspec.Struct, frozen=True):
    """Start nothing more: the shard is about to be handed over."""


Event = (
    PageRead
    | OpenFetched
    | ParkedLoaded
    | LoadFailed
    | Grant
    | Finished
    | Settled
    | SchedulesRead
    | Hold
    | Stop
)


class Read(msgspec.Struct, frozen=True):
    """Wants the next page, from here. Stands until a `PageRead` comes."""

    cursor: Cursor


class Fetch(msgspec.Struct, frozen=True):
    """Wants the records of a checkpoint's `open`, by key."""

    keys: tuple[OpenTask, ...]


class Load(msgspec.Struct, frozen=True):
    """Wants parked tasks: by due time, those behind `held_key`, or those of `task_ids`."""

    until_us: int
    limit: int
    after: tuple[int, str] = (0, "")
    held_key: str | None = None
    task_ids: tuple[TaskId, ...] = ()


class Dispatch(msgspec.Struct, frozen=True):
    """Start these."""

    attempts: list[Attempt]


class SettleSoon(msgspec.Struct, frozen=True):
    """There is something to settle: ask `ShardCore.settlement`. Said once for each change."""

    outcomes: int
    """The number of outcomes that wait, beyond those of the last time."""
    urgent: bool
    """Somebody waits for the settlement; else it may wait for others to share a transaction."""


class Replayed(msgspec.Struct, frozen=True):
    """Second rows of these tasks were refused: somebody has copied rows of the log."""

    task_ids: list[TaskId]


Effect = Read | Fetch | Load | Dispatch | SettleSoon | Replayed

"""Write calls that need something of the database before their rows can be made.

That is the key of a subject, which is read or made, and a lane that the app does not know yet. Both
are read in the caller's transaction.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Collection, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Protocol

import msgspec

from late.app.task import Call
from late.app.write import Writer, asked_by, write
from late.model.lanes import Lane
from late.model.task import NewTask, TaskId
from late.outbox.admission import Asked
from late.outbox.base import Steps
from late.outbox.execute import write_by
from late.outbox.insert import Target, insert, lane_of
from late.outbox.statements import Dialect
from late.outbox.subject_keys import keys_of
from late.payload import codec as codecs
from late.payload.subject_keys import SubjectKeys


class Lanes(Protocol):
    """A place where lanes are known."""

    def unknown_lanes(self, calls: Sequence[Call]) -> Collection[str]:
        """Return the lanes that `calls` name and that are not known."""

    def adopt(self, lane: Lane) -> None:
        """Place tasks by `lane` from now on."""


class Rows(Lanes, Protocol):
    """The maker of rows. `late.app.rows.RowFactory` satisfies it."""

    def many(
        self, calls: Sequence[Call], lane: Lane | None = ..., keys: Mapping[str, bytes] = ...
    ) -> list[NewTask]: ...
    def placed(
        self, calls: Sequence[Call], lane: Lane, keys: Mapping[str, bytes] = ...
    ) -> list[NewTask]: ...


def write_looked_up(
    app: Writer, rows: Rows, tx: Any, calls: list[Call], *, autocommit: bool
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Write `calls`, some of which have subjects or name unknown lanes, through `tx`.

    Raises:
        SubjectDropped: the key of a subject was dropped; no task was written.
        InvalidTask: a lane does not exist; no task was written.
        Other errors as for `write`.
    """
    if app.capture is not None:
        made = rows.many(laneless(calls), None, _made_up(calls))
        return write(app, tx, calls, made, autocommit=autocommit)
    steps = partial(_steps, rows, calls, asked_by(app, calls))
    return write_by(tx, steps, autocommit=autocommit)


def _steps(rows: Rows, calls: list[Call], asked: Asked | None, into: Target) -> Steps[list[TaskId]]:
    keys: dict[str, bytes] = {}
    for ring, subjects in _wanted(calls).items():
        keys |= yield from keys_of(ring, sorted(subjects), into.dialect)
    yield from find_lanes(rows, calls, into.dialect)
    again = partial(rows.placed, calls, keys=keys)
    return (yield from insert(rows.many(calls, None, keys), into, again, asked))


def find_lanes(lanes: Lanes, calls: Sequence[Call], dialect: Dialect) -> Steps[None]:
    """Read the lanes of `calls` that are not known.

    Raises:
        InvalidTask: one does not exist.
    """
    for name in sorted(lanes.unknown_lanes(calls)):
        lanes.adopt((yield from lane_of(name, dialect)))


def laneless(calls: Sequence[Call]) -> list[Call]:
    """Return the calls as if they named no lane, for tests, which have no database."""
    return [
        msgspec.structs.replace(call, settings=msgspec.structs.replace(call.settings, lane=None))
        for call in calls
    ]


def _wanted(calls: Sequence[Call]) -> dict[SubjectKeys, set[str]]:
    wanted: dict[SubjectKeys, set[str]] = {}
    for call in calls:
        ring, subject = codecs.owners(call.codec), call.settings.options.subject
        if ring is not None and subject is not None:
            wanted.setdefault(ring, set()).add(subject)
    return wanted


def _made_up(calls: Sequence[Call]) -> dict[str, bytes]:
    """Make keys for tests, which have no database: they last as long as the process."""
    keys: dict[str, bytes] = {}
    for ring, subjects in _wanted(calls).items():
        for subject in subjects:
            key = keys.setdefault(subject, os.urandom(32))
            ring.keep(subject, key, inf)
    return keys

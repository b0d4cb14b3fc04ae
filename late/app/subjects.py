"""Write calls with subjects: their keys are read, or made, in the caller's transaction first."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Protocol

from late.app.task import Call
from late.app.write import Writer, asked_by, write
from late.model.lanes import Lane
from late.model.task import NewTask, TaskId
from late.outbox.admission import Asked
from late.outbox.base import Steps
from late.outbox.execute import write_by
from late.outbox.insert import Target, insert
from late.outbox.subject_keys import keys_of
from late.payload import codec as codecs
from late.payload.subject_keys import SubjectKeys


class Rows(Protocol):
    """The maker of rows. `late.app.rows.RowFactory` satisfies it."""

    def many(
        self, calls: Sequence[Call], lane: Lane | None = ..., keys: Mapping[str, bytes] = ...
    ) -> list[NewTask]: ...
    def placed(
        self, calls: Sequence[Call], lane: Lane, keys: Mapping[str, bytes] = ...
    ) -> list[NewTask]: ...


def write_owned(
    app: Writer, rows: Rows, tx: Any, calls: list[Call], *, autocommit: bool
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Write `calls`, some of which have subjects, through `tx`.

    Raises:
        SubjectDropped: the key of a subject was dropped; no task was written.
        Other errors as for `write`.
    """
    if app.capture is not None:
        return write(app, tx, calls, rows.many(calls, None, _made_up(calls)), autocommit=autocommit)
    steps = partial(_steps, rows, calls, asked_by(app, calls))
    return write_by(tx, steps, autocommit=autocommit)


def _steps(rows: Rows, calls: list[Call], asked: Asked | None, into: Target) -> Steps[list[TaskId]]:
    keys: dict[str, bytes] = {}
    for ring, subjects in _wanted(calls).items():
        keys |= yield from keys_of(ring, sorted(subjects), into.dialect)
    again = partial(rows.placed, calls, keys=keys)
    return (yield from insert(rows.many(calls, None, keys), into, again, asked))


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

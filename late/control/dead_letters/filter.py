"""`Filter`: which dead letters are meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Integer, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.functions import FunctionElement

from late.errors import ConfigError
from late.model.ids import shard_of
from late.schema.tables import dead, stage

IDS_MAX = 200
"""Ids of one filter: fewer than a page of a shard has, so that they need no order."""
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")


class _Position(FunctionElement[int]):
    """The place of a text in a column, from 1: LIKE has no escape on Spanner."""

    type = Integer()
    inherit_cache = True


@compiles(_Position)
def _strpos(element: _Position, compiler: Any, **kw: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **kw)})"


@compiles(_Position, "sqlite")
def _instr(element: _Position, compiler: Any, **kw: Any) -> str:
    return f"instr({compiler.process(element.clauses, **kw)})"


class Filter(msgspec.Struct, frozen=True):
    """A choice of dead letters: every field that is given must match. Empty: all of them."""

    queue: str | None = None
    name: str | None = None
    reason: str | None = None
    group: str | None = None
    task_id: str | None = None
    since_us: int | None = None
    """Died at or after this time."""
    until_us: int | None = None
    """Died before this time."""
    error: str | None = None
    """A text that one of its attempts' errors holds, as it was written."""
    workflow: str | None = None
    """The id of any task of a workflow: all of its dead letters."""
    task_ids: tuple[str, ...] | None = None
    """One of these, at most `IDS_MAX`: a purge or a redrive takes more as its `only`."""

    def check(self) -> None:
        """Refuse what can match nothing.

        Raises:
            ConfigError: a name outside the rule for names, or an empty range of time.
            InvalidName: not a task id.
        """
        for field in ("queue", "name", "reason", "group"):
            value = getattr(self, field)
            if value is not None and not _NAME.match(value):
                raise ConfigError(
                    f"{field} {value[:64]!r}: names are 1 to 128 of letters, digits and . _ : -"
                )
        for task_id in (self.task_id, self.workflow, *(self.task_ids or ())):
            if task_id is not None:
                shard_of(task_id)
        since, until = self.since_us, self.until_us
        if since is not None and until is not None and since >= until:
            raise ConfigError("since must be before until")

    def clauses(self, of: ReadOnlyColumnCollection[str, Any] = dead.c) -> list[ColumnElement[bool]]:
        """The conditions on `late_dead`, or on a part of it."""
        found: list[ColumnElement[bool]] = []
        for column, value in (
            (of.queue, self.queue),
            (of.name, self.name),
            (of.reason, self.reason),
            (of.consumer_group, self.group),
            (of.task_id, self.task_id),
        ):
            if value is not None:
                found.append(column == value)
        if self.error is not None:
            # As JSON has it, where quotes and such are escaped.
            text = msgspec.json.encode(self.error).decode()[1:-1]
            found.append(_Position(of.errors, text) > 0)
        if self.task_id is not None:
            found.append(of.shard_id == shard_of(self.task_id))
        if self.task_ids is not None:
            found.append(of.shard_id.in_(sorted(set(map(shard_of, self.task_ids)))))
            found.append(of.task_id.in_(self.task_ids))
        if self.workflow is not None:
            own = stage.alias("own")
            ours = select(own.c.workflow_id).where(own.c.task_id == self.workflow)
            all_of_it = select(stage.c.task_id).where(stage.c.workflow_id == ours.scalar_subquery())
            found.append(of.task_id.in_(all_of_it))
        if self.since_us is not None:
            found.append(of.dead_at_us >= self.since_us)
        if self.until_us is not None:
            found.append(of.dead_at_us < self.until_us)
        return found

    def keyed(self) -> Filter:
        """The part of it that one group's rows of one shard have indexes for."""
        return Filter(
            task_id=self.task_id, workflow=self.workflow, since_us=self.since_us,
            until_us=self.until_us, task_ids=self.task_ids,
        )  # fmt: skip

    def among(self, only: Sequence[str] | None) -> Iterator[Filter]:
        """Yield filters that together match what this one does of `only`; None stands for all."""
        if only is None:
            yield self
        for start in range(0, len(only or ()), IDS_MAX):
            some = tuple((only or ())[start : start + IDS_MAX])
            yield msgspec.structs.replace(self, task_ids=some)

    def reaches(self, name: str, shard_id: int) -> bool:
        """Return True if a (group, shard) can have some that match."""
        return (
            self.group in (None, name)
            and (self.task_id is None or shard_of(self.task_id) == shard_id)
            and (self.task_ids is None or shard_id in map(shard_of, self.task_ids))
        )

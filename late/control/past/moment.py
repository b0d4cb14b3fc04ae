"""A past moment: what an operator may ask for, and which source tells of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, func, literal_column, select, table

from late.control.past.as_of import AsOf, NotKnown
from late.control.sql.rows import COCKROACH, SPANNER, now_us
from late.control.views import Status, TaskView
from late.errors import ConfigError
from late.model.time_text import WHEN, duration_us
from late.model.time_text import moment_us as read_moment
from late.schema.engine import reading
from late.schema.tables import group

VERSIONED = frozenset({SPANNER, COCKROACH})
"""Dialects of databases that keep former versions of their rows for a time."""
_PATH = re.compile(r"([a-z_]+)(?:\[([^\]]*)\])?")
"""The steps of a path, such as `groups[default].state`."""
_RETENTION = "1h"
"""Spanner's `version_retention_period` where nobody has set it."""


class Moment(msgspec.Struct, frozen=True):
    """A moment that has passed, and that the database has lived through."""

    at_us: int
    engine: Engine
    """The engine to read with. If `versions`, its reads see the tables as they were then."""
    versions: bool
    """True if the database kept what its tables held; else the journal tells."""

    def as_of(self, *not_known: NotKnown) -> AsOf:
        """Return what an answer says of this moment."""
        return AsOf(self.at_us, "versions" if self.versions else "journal", not_known)


def moment_of(engine: Engine, text: str) -> Moment:
    """Read a moment: a time with its zone, or an age such as `2h`.

    Raises:
        ConfigError: it is neither, it has not come yet, the database is younger, or its versions
            do not reach back so far.
    """
    versions = engine.dialect.name in VERSIONED
    with reading(engine) as connection:
        now = now_us(connection)
        at_us = read_moment(text, "as of", now, expected=WHEN)
        if at_us > now:
            raise ConfigError(f"as of {said(at_us)}: it has not come yet; it is {said(now)}")
        made_us = connection.execute(select(func.min(group.c.created_at_us))).scalar()
        if made_us is not None and at_us < made_us:
            raise ConfigError(
                f"as of {said(at_us)}: the database is younger, it was made at {said(made_us)}"
            )
        if engine.dialect.name == SPANNER:
            _check_retention(connection, at_us, now)
    seen = engine.execution_options(late_at_us=at_us) if versions else engine
    return Moment(at_us, seen, versions)


def _check_retention(connection: Connection, at_us: int, now: int) -> None:
    options: Any = table("database_options", schema="information_schema")
    name: ColumnElement[str] = literal_column("option_name")
    value: ColumnElement[str] = literal_column("option_value")
    found = select(value).select_from(options).where(name == "version_retention_period")
    kept = connection.execute(found).scalar() or _RETENTION
    if now - at_us > duration_us(str(kept), "version_retention_period"):
        raise ConfigError(
            f"as of {said(at_us)}: Spanner keeps versions for {kept} only"
            " (version_retention_period of the database)"
        )


def said(us: int) -> str:
    """Return a time for a message."""
    try:
        return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{us} us"


def left_out(answer: Status | TaskView | msgspec.Struct) -> Any:
    """Return an answer for an encoder, without the parts that are not known of its moment."""
    as_of: AsOf | None = getattr(answer, "as_of", None)
    if as_of is None or not as_of.not_known:
        return answer
    plain = msgspec.to_builtins(answer)
    for each in as_of.not_known:
        _drop(plain, _PATH.findall(each.field))
    return plain


def _drop(plain: Any, path: Sequence[tuple[str, str]]) -> None:
    """Remove what a path names, in each element of the lists on its way, or in that of a group."""
    (name, group), *others = path
    if not isinstance(plain, dict) or name not in plain:
        return
    if not others:
        del plain[name]
        return
    below = plain[name] if isinstance(plain[name], list | tuple) else [plain[name]]
    for each in below:
        if not group or each.get("group") == group:
            _drop(each, others)

"""Cursors of the SQLite store: the last rowid that was read, as text."""

from __future__ import annotations

from late.model.task import Cursor


def cursor_at(position: int) -> Cursor:
    """A cursor is the last rowid it covers; the empty string covers nothing."""
    return Cursor(str(position) if position else "")


def position_of(cursor: str) -> int:
    """The last rowid that `cursor` covers: of a page's end (`17`), or of a record (`@17,id`)."""
    return int(cursor.rpartition("@")[2].partition(",")[0] or 0)

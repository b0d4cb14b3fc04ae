"""Cursors of psycopg that refuse a statement which would end the transaction."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar, Self

import psycopg
from psycopg import sql

from late.outbox.adapters.psycopg_tags import TaggedAsyncCursor, TaggedCursor

_MAY_END = re.compile(r"commit|\bend\b|abort|rollback|prepare", re.IGNORECASE)
"""Nearly no statement has one of these words, and those that have none are passed at once."""
_REST = r"--[^\n\r]*|/\*|\"[^\"]*\"|(?<![\w$])\$(\w*)\$.*?\$\1\$"
_COMMENT = re.compile(r"/\*|\*/")
_PLAIN, _ESCAPED = r"'(?:[^']|'')*'", r"'(?:[^'\\]|\\.|'')*'"
_QUOTED = [re.compile(f"{_REST}|{text}", re.DOTALL) for text in (_PLAIN, _ESCAPED)]
"""Texts without and with escapes by a backslash: a statement is refused by either."""
_ENDS = re.compile(
    r"(?:(?P<commit>commit|end|prepare\s+transaction)"
    r"|abort|rollback(?!\s+(?:work\s+|transaction\s+)?to\b))\b",
    re.IGNORECASE,
)


def _bare(query: str, quoted: re.Pattern[str]) -> str:
    """Return the statements without texts and comments."""
    parts, at = [], 0
    while found := quoted.search(query, at):
        parts.append(query[at : found.start()])
        at = _comment_end(query, found.end()) if found[0] == "/*" else found.end()
    return " ".join([*parts, query[at:]])


def _comment_end(query: str, at: int) -> int:
    """Return the end of the comment that has begun before `at`. Comments nest in PostgreSQL."""
    depth = 1
    for mark in _COMMENT.finditer(query, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return len(query)


def refuse_end(query: Any, commit: str, rollback: str) -> None:
    """Refuse a statement that would end the transaction.

    Args:
        commit, rollback: the messages.

    Raises:
        psycopg.ProgrammingError: `query` has such a statement.
    """
    if isinstance(query, sql.Composable):
        query = query.as_string(None)
    elif isinstance(query, bytes):
        query = query.decode(errors="replace")
    if not isinstance(query, str) or _MAY_END.search(query) is None:
        return
    statements = [each for quoted in _QUOTED for each in _bare(query, quoted).split(";")]
    for found in map(_ENDS.match, map(str.strip, statements)):
        if found is not None:
            raise psycopg.ProgrammingError(commit if found["commit"] else rollback)


class RefusingCursor(TaggedCursor):
    """A cursor that refuses the end of the transaction."""

    refusals: ClassVar[tuple[str, str]]
    """The messages for a commit, and for a rollback."""

    def execute(self, query: Any, params: Any = None, **more: Any) -> Self:
        refuse_end(query, *self.refusals)
        return super().execute(query, params, **more)

    def executemany(self, query: Any, params_seq: Any, **more: Any) -> None:
        refuse_end(query, *self.refusals)
        super().executemany(query, params_seq, **more)

    def stream(self, query: Any, params: Any = None, **more: Any) -> Iterator[Any]:
        refuse_end(query, *self.refusals)
        return super().stream(query, params, **more)


class RefusingAsyncCursor(TaggedAsyncCursor):
    """The same for a connection that is awaited."""

    refusals: ClassVar[tuple[str, str]]

    async def execute(self, query: Any, params: Any = None, **more: Any) -> Self:
        refuse_end(query, *self.refusals)
        return await super().execute(query, params, **more)

    async def executemany(self, query: Any, params_seq: Any, **more: Any) -> None:
        refuse_end(query, *self.refusals)
        await super().executemany(query, params_seq, **more)

    def stream(self, query: Any, params: Any = None, **more: Any) -> AsyncIterator[Any]:
        refuse_end(query, *self.refusals)
        return super().stream(query, params, **more)

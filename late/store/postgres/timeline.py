"""The server that the positions of this process belong to, and its history.

A promoted standby may lack the last commits, and gives their transaction ids again. The journal
went back together with the log; the memory of this process did not. So a worker that sees another
timeline must read its checkpoints again. Direct connections break in a fail-over, and the guard of
the next one would do; behind a pooler they live on, so each look at the log brings the timeline.

A pooler may also be pointed at a copy of the database on another server, with transaction ids of
its own and the same timeline. So each look brings the time at which the server was started, too;
where that is another one, the guard looks at the server as it does at a new connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from late.errors import StoreRefused

if TYPE_CHECKING:
    from late.store.postgres.connection import Connection

STARTED = "extract(epoch from pg_postmaster_start_time())::text"
"""The start of the server, which tells it from another one behind the same pooler."""


class Timeline:
    """The timeline that was seen first, and the server's start that was seen last.

    Both are in one text: the timeline as eight hexadecimal digits, `/`, and the start in seconds.
    """

    def __init__(self) -> None:
        self._known: str | None = None
        self._seen: str | None = None

    def is_new(self, found: str | None) -> bool:
        """Return whether the guard has not seen this server since its start."""
        return found != self._seen

    def check(self, found: str | None, connection: Connection) -> None:
        """Take in what the server of `connection` has said; the first timeline decides.

        Raises:
            StoreRefused: it is another one.
        """
        line = None if found is None else found.partition("/")[0]
        if self._known not in (None, line):
            raise StoreRefused(
                f"database {connection.info.dbname!r} failed over (timeline {self._known} to"
                f" {line}): restart this worker, it must read its checkpoints again"
            )
        self._known, self._seen = line, found

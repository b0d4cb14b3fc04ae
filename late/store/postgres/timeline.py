"""The history of the server that the positions of this process belong to.

A promoted standby may lack the last commits, and gives their transaction ids again. The journal
went back together with the log; the memory of this process did not. So a worker that sees another
timeline must read its checkpoints again. Direct connections break in a fail-over, and the guard of
the next one would do; behind a pooler they live on, so each look at the log brings the timeline.
"""

from __future__ import annotations

from late.errors import StoreRefused
from late.store.postgres.connection import Connection


class Timeline:
    """The timeline that was seen first, as eight hexadecimal digits."""

    def __init__(self) -> None:
        self._known: str | None = None

    def check(self, found: str | None, connection: Connection) -> None:
        """Take in what the server of `connection` has said; the first one decides.

        Raises:
            StoreRefused: it is another one.
        """
        if self._known not in (None, found):
            raise StoreRefused(
                f"database {connection.info.dbname!r} failed over (timeline {self._known} to"
                f" {found}): restart this worker, it must read its checkpoints again"
            )
        self._known = found

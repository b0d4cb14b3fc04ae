"""`app.control` by Celery's names: the revocation of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from late.celery import ids as own
from late.celery.exceptions import NotSupported
from late.celery.result import AsyncResult
from late.celery.transactions import joined

if TYPE_CHECKING:
    from late.celery.app import Celery


class Control:
    """`app.control`: what of Celery's remote control is here."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def revoke(
        self,
        task_id: str | AsyncResult | Iterable[str | AsyncResult],
        terminate: bool = False,
        signal: str | None = None,
    ) -> None:
        """Let no attempt of these tasks start any more: they end as REVOKED.

        It joins the transaction that is open, or else commits by itself. A task that has ended
        does not change, and an attempt that runs goes on to its end.

        Raises:
            NotSupported: `terminate`. A thread cannot be ended from outside.
        """
        if terminate:
            raise NotSupported("revoke(terminate=True): a running attempt is ended by time_limit,"
                               " or by itself at soft_time_limit")  # fmt: skip
        ids = [task_id] if isinstance(task_id, str | AsyncResult) else task_id
        late_app = self._app.late_app
        with joined(late_app, self._app.conf.late_django_database) as tx:
            for found in map(str, ids):
                late_app.cancel(tx, own.found(late_app, found) or found)

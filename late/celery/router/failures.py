"""Failures on Celery's side: its workers record them, so that the ramp shows both sides' errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from late.app.app import App
from late.celery.task import Task
from late.control.status.celery_shares import FAILED_QUEUE
from late.errors import LateError
from late.outbox import connect

logger = logging.getLogger("late.celery")


class Failures:
    """Listens in each process that has the router. Celery's workers send the signals.

    An attempt that failed is one row in the log, beside no other transaction. The rows of attempts
    that went well would cost Celery's side an insert each, so there are none.

    Args:
        app: the app with the database.
        names: the name of a task -> that of its row; see `record`.
    """

    def __init__(self, app: App, names: Mapping[str, str]) -> None:
        self._app = app
        self._names = names
        # A module without types. Celery is there: the router has its app.
        signals: Any = import_module("celery.signals")
        signals.task_failure.connect(self.note)
        signals.task_retry.connect(self.note)

    def note(self, sender: Any = None, **_: Any) -> None:
        """Record that an attempt of Celery's has failed. A database that is away is logged."""
        name = self._names.get(getattr(sender, "name", ""))
        # Those of `late` come here too, and those in the caller's process are of no side.
        if name is None or isinstance(sender, Task) or sender.request.is_eager:
            return
        try:
            # A connection of its own: a pool would not survive the forks of Celery's worker.
            with connect(self._app.url) as tx:
                self._app.enqueue(tx, self._app.tasks[name].call())
        except (LateError, OSError) as error:
            logger.warning("a failure of %s on Celery is not counted: %s", sender.name, error)


def record(app: App, name: str) -> None:
    """Register the row that counts a failure. To run it does nothing: the journal counts it."""
    app.task(name=name, queue=FAILED_QUEUE)(_counted)


def _counted() -> None:
    """Do nothing."""

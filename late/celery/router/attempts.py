"""Attempts on Celery's side: its workers record them, so that the ramp shows both sides.

An attempt that failed is one row in the log, and so is the start of a call now and then. A row for
each attempt would cost Celery's side an insert each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import msgspec

from late.app.app import App
from late.app.task import Call
from late.celery.task import Task
from late.control.status.celery_shares import FAILED_QUEUE, started_queue
from late.errors import LateError
from late.outbox import connect

logger = logging.getLogger("late.celery")

DUE = "late_due_us"
"""The header of a message with the due time of its call, by the database's clock."""
SAMPLE_EVERY_S = 10.0
"""Each process of Celery records the start of one call of a task in so many seconds."""


class Attempts:
    """Listens in each process that has the router. Celery's workers send the signals.

    Args:
        app: the app with the database.
        names: the name of a task -> those of its two rows, of a failure and of a start.
        now: the seconds of this machine's clock. It is compared with the database's.
    """

    def __init__(
        self,
        app: App,
        names: Mapping[str, tuple[str, str]],
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._names = names
        self._now = now
        self._monotonic = monotonic
        self._sampled_s: dict[str, float] = {}
        # A module without types. Celery is there: the router has its app.
        signals: Any = import_module("celery.signals")
        signals.task_failure.connect(self.note_failure)
        signals.task_retry.connect(self.note_failure)
        signals.task_prerun.connect(self.note_start)

    def note_failure(self, sender: Any = None, **_: Any) -> None:
        """Record that an attempt of Celery's has failed. A database that is away is logged."""
        if names := self._names_of(sender):
            self._insert(sender, self._app.tasks[names[0]].call())

    def note_start(self, sender: Any = None, **_: Any) -> None:
        """Record how late a call starts, of one call in `SAMPLE_EVERY_S`."""
        names = self._names_of(sender)
        due_us = getattr(getattr(sender, "request", None), DUE, None)
        if not names or due_us is None or sender.request.retries:
            return
        if self._monotonic() < self._sampled_s.get(sender.name, float("-inf")) + SAMPLE_EVERY_S:
            return
        self._sampled_s[sender.name] = self._monotonic()
        queue = started_queue(self._now() - int(due_us) / 1_000_000)
        self._insert(sender, msgspec.structs.replace(self._app.tasks[names[1]].call(), queue=queue))

    def _names_of(self, sender: Any) -> tuple[str, str] | None:
        # Those of `late` come here too, and those in the caller's process are of no side.
        names = self._names.get(getattr(sender, "name", ""))
        if names is None or isinstance(sender, Task) or sender.request.is_eager:
            return None
        return names

    def _insert(self, sender: Any, call: Call) -> None:
        try:
            # A connection of its own: a pool would not survive the forks of Celery's worker.
            with connect(self._app.url) as tx:
                self._app.enqueue(tx, call)
        except (LateError, OSError) as error:
            logger.warning("an attempt of %s on Celery is not counted: %s", sender.name, error)


def record(app: App, names: tuple[str, str]) -> None:
    """Register the rows of a task. To run them does nothing: the journal counts them."""
    for name in names:
        app.task(name=name, queue=FAILED_QUEUE)(_counted)


def _counted() -> None:
    """Do nothing."""

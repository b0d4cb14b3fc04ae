"""Attempts whose payload needs the key of a subject that is not in memory.

Only such an attempt comes here: decoding raises, and the key is read. A database that is away costs
no attempt: the task is interrupted, and starts again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import sleep
from typing import Any

from late.dispatcher.handler import Bound
from late.handler.classify import GIVEN_BACK, Refused
from late.model.task import Attempt
from late.outbox.idle_connections import IdleConnections
from late.outbox.subject_keys import load
from late.payload.subject_keys import SubjectKeyNeeded

AWAY_S = 1.0
"""The pause after a key could not be read, before the task may start again."""

log = logging.getLogger("late.dispatcher")


def fetch(url: str, needed: SubjectKeyNeeded, idle: IdleConnections | None = None) -> None:
    """Read the key that is needed. It blocks: call it in a thread.

    Raises:
        Refused: the key could not be read, so the attempt is interrupted.
    """
    try:
        load(url, needed, idle)
    except Exception as error:
        log.warning("the key of a subject was not read: %s", type(error).__name__)
        sleep(AWAY_S)
        raise Refused(GIVEN_BACK) from error


def arguments_with(
    needed: SubjectKeyNeeded, bound: Bound, attempt: Attempt, url: str, idle: IdleConnections
) -> Mapping[str, Any]:
    """Read the key that is needed, and return the arguments of a task.

    Raises: as decoding; `Refused`, see `fetch`.
    """
    while True:
        fetch(url, needed, idle)
        try:
            return bound.decode(attempt.record, attempt.options)
        except SubjectKeyNeeded as again:  # It was read long ago, or others have displaced it.
            needed = again

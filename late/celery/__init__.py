"""Celery's calls on `late`: for services that move. It does not need the package `celery`.

`app = late.celery.Celery("shop", late_app=late.App(url))`, and the tasks stay as they are. A call
joins the transaction that is open. See `docs/celery-tasks.md`. `scan/` reads the
source of a project that uses Celery, and says what of it works here. `router/` sends a share of a
task's calls to `late` and the others to Celery.
"""

from __future__ import annotations

from late.celery.app import Celery, shared_task
from late.celery.blocks import NotCommitted
from late.celery.current import current_app, current_task, signature, subtask
from late.celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    NotSupported,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TaskRevokedError,
)
from late.celery.result import AsyncResult, EagerResult, GroupResult
from late.celery.signatures import Signature, chain, chord, group
from late.celery.task import Task
from late.celery.transactions import NoTransaction, OutsideTransaction, transaction
from late.celery.utils import uuid

__all__ = [
    "AsyncResult",
    "Celery",
    "EagerResult",
    "GroupResult",
    "Ignore",
    "MaxRetriesExceededError",
    "NoTransaction",
    "NotCommitted",
    "NotSupported",
    "OutsideTransaction",
    "Reject",
    "Retry",
    "Signature",
    "SoftTimeLimitExceeded",
    "Task",
    "TaskRevokedError",
    "chain",
    "chord",
    "current_app",
    "current_task",
    "group",
    "shared_task",
    "signature",
    "subtask",
    "transaction",
    "uuid",
]

"""`celery.utils`: the two names of it that tasks use, `uuid` here and loggers in `log`."""

from __future__ import annotations

from uuid import uuid4


def uuid() -> str:
    """Return a new id as text, for the `task_id` of a call."""
    return str(uuid4())

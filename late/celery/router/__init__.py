"""Move a service from Celery to `late` task by task, by a share of the calls that an operator sets.

    router = Router(late.App(url), celery_app)

    @router.task(bind=True, max_retries=5)
    def send(self, order: int) -> None: ...

    send.delay(1)

The function becomes a task of both systems, and each call goes to one of them: one row in the log
of `late` is either the task, or an order to hand the call to Celery's broker. See
`docs/celery-router.md`. Celery is needed for this, and not by the rest of `late.celery`.
"""

from __future__ import annotations

from late.celery.router.router import Routed, Router

__all__ = ["Routed", "Router"]

"""`router.control`: the revocation of calls, on the side that has each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from late.celery.ids import found

if TYPE_CHECKING:
    from late.celery.router.router import Router


class Control:
    """In place of `celery_app.control`, which knows Celery's calls alone."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def revoke(
        self, task_id: Any, terminate: bool = False, signal: str | None = None, **options: Any
    ) -> None:
        """Revoke calls by their ids or results, those of both systems.

        What `late` has joins the transaction that is open, or else commits by itself; an attempt
        that runs goes on to its end. Celery's workers are told at once.

        Args:
            terminate, signal, options: for Celery's calls.

        Raises:
            StoreError: the database cannot be read.
        """
        router = self._router
        one = isinstance(task_id, str) or not isinstance(task_id, Iterable)
        ids = [str(each) for each in ([task_id] if one else task_id)]
        ours = {each for each in ids if found(router.late_app, each) is not None}
        if ours:
            router.late.control.revoke([each for each in ids if each in ours])
        theirs = [each for each in ids if each not in ours]
        if theirs:
            given = {**options, **({} if signal is None else {"signal": signal})}
            router.celery_app.control.revoke(theirs, terminate=terminate, **given)

    def __getattr__(self, name: str) -> Any:
        """Return what else Celery's control has."""
        if name.startswith("_"):  # A copy that is half made has no `_router` yet.
            raise AttributeError(name)
        return getattr(self._router.celery_app.control, name)

"""The settings of Celery's app that hold for what the router runs on `late`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from late.celery.app import Celery
from late.celery.settings import DEFAULTS, today
from late.errors import ConfigError

logger = logging.getLogger("late.celery")

FOLLOWED = (
    "task_default_queue", "task_routes", "task_time_limit", "task_soft_time_limit",
    "task_ignore_result", "result_expires", "timezone",
)  # fmt: skip
"""The settings that are taken over."""
_UNSET = {"task_default_queue": "celery"}
"""Values of Celery that say nothing. The queue `celery` of `late` is that of Celery's calls."""


class Followed:
    """Takes the settings of Celery's app over into a `late.celery.Celery`.

    Args:
        late: the one that gets them.
        celery_app: the app of Celery.
        given: settings that stay as they are.
    """

    def __init__(self, late: Celery, celery_app: Any, given: Mapping[str, Any]) -> None:
        self._late = late
        self._app = celery_app
        self._given = {today(name) for name in given}
        self._seen: dict[str, Any] = {}

    def update(self) -> None:
        """Take over what was set since the last time. What `late` cannot have is logged once."""
        # Celery reads its settings at the first use: not before, as its project may be half loaded.
        conf = self._app.conf
        for name in FOLLOWED:
            value = getattr(conf, name, None)
            if value == _UNSET.get(name):
                value = None
            if name in self._given or value == self._seen.get(name):
                continue
            self._seen[name] = value
            self._take(name, value)

    def _take(self, name: str, value: Any) -> None:
        try:
            self._late.conf.update({name: DEFAULTS[name] if value is None else value})
        except ConfigError as error:
            logger.warning("%s of Celery's app is without an effect on late: %s", name, error)

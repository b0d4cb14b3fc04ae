"""List the tasks that an app handles, with the fingerprints of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from late.handler.fingerprint import UNKNOWN, fingerprint
from late.model.handlers import ROUTE


class Registered(Protocol):
    """The part of an app that is needed. `late.App` satisfies it."""

    @property
    def tasks(self) -> Mapping[str, Any]: ...
    @property
    def routes(self) -> Mapping[str, Any]: ...


def handlers_of(app: Registered) -> dict[str, str]:
    """Return the handlers as `late.model.handlers` describes them."""
    tasks = {name: fingerprint(task.shape, task.parameters) for name, task in app.tasks.items()}
    return tasks | {ROUTE + queue: UNKNOWN for queue in app.routes}

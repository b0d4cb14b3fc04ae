"""Helpers for the tests of services that use `late`.

Names are imported on first use, so that the pytest plugin costs almost nothing in a run that does
not use it.

- `inline(app)` captures tasks instead of storing them, and runs them in the test's own thread.
- `assert_enqueued(tx, task, args={...})` checks the tasks that a transaction has inserted.
- `drain(app)` runs a real worker in this process until nothing is left to do.
- `VirtualClock` is a time that jumps when all tasks of the loop wait.
- The plugin `late.testing.pytest_plugin` has the fixtures `late_db` and `late_app`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from late.testing.assertions import Enqueued, assert_enqueued
    from late.testing.clock import VirtualClock
    from late.testing.drain_worker import NotDrained, drain
    from late.testing.inline_mode import Box, inline

__all__ = [
    "Box",
    "Enqueued",
    "NotDrained",
    "VirtualClock",
    "assert_enqueued",
    "drain",
    "inline",
]

_HOME_OF = {
    "Box": "inline_mode",
    "Enqueued": "assertions",
    "VirtualClock": "clock",
    "assert_enqueued": "assertions",
    "NotDrained": "drain_worker",
    "drain": "drain_worker",
    "inline": "inline_mode",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'late.testing' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"late.testing.{_HOME_OF[name]}"), name)
    return found

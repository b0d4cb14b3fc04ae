"""What Celery, and `late.celery` as well, keep for the whole process: a test's part of it."""

from __future__ import annotations

import sys
from typing import Any

import pytest


def forget_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks, apps and receivers of signals that come now go with the test.

    Celery gives the tasks of an app to every app that comes later, in the same process, and so does
    `late.celery` with shared tasks. A task with a name that another test has used would be that
    one's.
    """
    if state := sys.modules.get("celery._state"):
        monkeypatch.setattr(state, "_on_app_finalizers", set(state._on_app_finalizers))
        monkeypatch.setattr(state._tls, "current_app", state._tls.current_app)
        monkeypatch.setattr(state, "default_app", state.default_app)
    if app := sys.modules.get("late.celery.app"):
        monkeypatch.setattr(app, "_apps", list(app._apps))
        monkeypatch.setattr(app, "_shared", list(app._shared))
    for module, kept in (("celery.signals", "receivers"), ("late.celery.signals", "_receivers")):
        for signal in _signals(module):
            found = getattr(signal, kept)
            monkeypatch.setattr(signal, kept, type(found)(found))


def _signals(module: str) -> list[Any]:
    known = vars(sys.modules[module]).values() if module in sys.modules else ()
    return [each for each in known if type(each).__name__ == "Signal"]

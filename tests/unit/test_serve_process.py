"""`late serve` is a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

import late
from late.api import server as serve
from late.api.settings import ServeSettings
from late.worker import assembly


def test_what_has_started_is_kept_out_of_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    class Server:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def ask_to_stop(self) -> None: ...

        def take(self, settings: object) -> None: ...

        async def start(self) -> None:
            steps.append("start")

        async def wait(self) -> int:
            steps.append("wait")
            return 0

    monkeypatch.setattr(serve, "Server", Server)
    monkeypatch.setattr(assembly, "freeze_gc", lambda: steps.append("freeze_gc"))
    app = late.App("sqlite:///nothing.db")
    assert serve.run(app, ServeSettings(), groups=("default",)) == 0
    assert steps == ["start", "freeze_gc", "wait"]

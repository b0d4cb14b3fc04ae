"""The code of the page on hooks is run as it stands there."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from late import outbox
from late.testing import drain
from tests.integration.test_docs_guides import blocks, module
from tests.support import sqlite as store


class Scope:
    """The part of Sentry's scope that the page uses."""

    def __init__(self, told: list[tuple[str, str]]) -> None:
        self.tags: dict[str, str] = {}
        self.told = told

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *_: object) -> None: ...

    def set_tag(self, name: str, value: str) -> None:
        self.tags[name] = value

    def capture_message(self, text: str, level: str) -> None:
        assert self.tags.keys() == {"queue", "task_id"}
        self.told.append((level, text.split(" ")[0]))


def test_the_hooks_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[tuple[str, str]] = []
    sentry: Any = ModuleType("sentry_sdk")
    sentry.new_scope = lambda: Scope(told)
    monkeypatch.setitem(sys.modules, "sentry_sdk", sentry)
    found = blocks("errors-and-hooks.md")
    parts = ("hooks.py", "hooks.py, in the service", "hooks.py, the log")
    page = module(tmp_path / "hooks.py", "\n\n".join(found[part] for part in parts))
    alarms = module(tmp_path / "alarms.py", found["alarms.py"])
    store.database(tmp_path / "shop.db")
    try:
        with outbox.connect(page.app.url) as tx:
            page.order(tx, 7, "request-7")
            page.order(tx, 13, "request-13")
            page.ship.options(headers={"correlation": "request-8"}).enqueue(tx, order_id=8)
        assert drain(page.app, wait_s=5) == {"done": 2, "dead": 1}
    finally:
        alarms.unsubscribe()
        logging.getLogger("shop").handlers.clear()
    lines = capsys.readouterr().err.splitlines()
    for start in (
        "charges order 7 request-7 ", "charges order 13 request-13 ", "ships order 8 request-8 ",
        "charge failed request-13 ",
    ):  # fmt: skip
        (line,) = (each for each in lines if each.startswith(start))
        assert "'attempt': " in line
    assert "ValueError: card declined" in lines
    assert ("error", "charge:") in told

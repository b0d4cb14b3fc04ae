"""Tests that use Celery leave nothing behind for the next one in their process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import celery
import celery.signals
import pytest

import late
from late.celery import app as shim
from late.celery import signals
from late.celery.router import Router
from late.testing import drain
from tests.support.celery_state import forget_at_the_end


def one() -> int:
    return 1


def two() -> int:
    return 2


@pytest.fixture(autouse=True)
def _own_celery() -> None:
    """Nothing but these tests themselves forgets here."""


def test_a_name_may_be_used_again(late_db: str) -> None:
    """If not, Celery warns, which is an error, and has the function of the first test."""
    for function in (one, two):
        with pytest.MonkeyPatch.context() as monkeypatch:
            forget_at_the_end(monkeypatch)
            theirs = celery.Celery("shop", broker="memory://", set_as_current=False)
            router = Router(late.App(late_db), theirs)
            router.task(name="shop.send")(function)
            shim.shared_task(name="shop.shared")(function)
            ours = shim.Celery("shop", late_app=late.App(late_db))
            tasks: tuple[Callable[[], Any], ...] = (
                theirs.tasks["shop.send"], ours.tasks["shop.shared"],
            )  # fmt: skip
            assert {task() for task in tasks} == {function()}


def test_apps_and_receivers_of_a_test_go_with_it(late_db: str) -> None:
    told: list[int] = []

    def hear(**_: Any) -> None:
        told.append(1)

    before = list(shim._apps)
    with pytest.MonkeyPatch.context() as monkeypatch:
        forget_at_the_end(monkeypatch)
        app = shim.Celery("shop", late_app=late.App(late_db), late_outside_transaction="open")
        signals.task_success.connect(hear)
        celery.signals.task_success.connect(hear)
        app.task(name="shop.send")(one).delay()
        assert drain(app.late_app) == {"done": 1}
        assert told == [1, 1]
    signals.task_success.send("me")
    assert told == [1, 1]
    assert shim._apps == before

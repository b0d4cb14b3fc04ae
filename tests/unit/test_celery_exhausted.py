"""The reason of a dead letter: retries that are used up, or an error without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import late
from late.celery import Celery
from late.celery.exceptions import SoftTimeLimitExceeded
from late.control import Control
from late.testing import drain


class Down(Exception):
    pass


def asks(self: Any) -> None:
    raise self.retry(exc=Down("mail"), countdown=0)


def asks_without_an_error(self: Any) -> None:
    self.retry(countdown=0)


def asks_for_one(self: Any) -> None:
    raise self.retry(exc=Down("mail"), countdown=0, max_retries=1)


def asks_after_a_limit(self: Any) -> None:
    raise self.retry(exc=SoftTimeLimitExceeded(), countdown=0)


def fails(self: Any) -> None:
    raise Down("mail")


def rejected(self: Any) -> None:
    try:
        raise self.retry(exc=Down("mail"), countdown=0)
    except Down:
        raise late.Discard("of no use") from None


AUTOMATIC = {"autoretry_for": (Down,), "retry_kwargs": {"max_retries": 2, "countdown": 0}}


@pytest.mark.parametrize(
    ("function", "options", "expected", "attempts", "error"),
    [
        (asks, {"max_retries": 2}, "attempts_exhausted", 3, "Down: mail ["),
        (asks_without_an_error, {"max_retries": 1}, "attempts_exhausted", 2, "MaxRetriesExceeded"),
        (asks_for_one, {"max_retries": 3}, "attempts_exhausted", 2, "Down: mail ["),
        (asks_after_a_limit, {"max_retries": 1}, "attempts_exhausted", 2, "TimeLimitFailure: "),
        (fails, AUTOMATIC, "attempts_exhausted", 3, "Down: mail ["),
        (fails, {"max_retries": 2}, "gave_up", 1, "Down: mail ["),
    ],
)
def test_the_reason_is_of_the_retries(
    late_db: str,
    function: Callable[..., Any],
    options: dict[str, Any],
    expected: str,
    attempts: int,
    error: str,
) -> None:
    app = Celery("shop", late_app=late.App(late_db), late_outside_transaction="open")
    app.task(name="shop.send", bind=True, **options)(function).delay()
    assert drain(app.late_app, wait_s=5) == {"dead": 1}
    with Control(late_db) as control:
        (letter,) = control.dead_letters.find()
    assert (letter.reason, letter.attempts) == (expected, attempts)
    assert error in letter.errors[-1].error


def test_another_outcome_after_the_last_retry_counts(late_db: str) -> None:
    app = Celery("shop", late_app=late.App(late_db), late_outside_transaction="open")
    app.task(name="shop.send", bind=True, max_retries=0)(rejected).delay()
    assert drain(app.late_app, wait_s=5) == {"discarded": 1}

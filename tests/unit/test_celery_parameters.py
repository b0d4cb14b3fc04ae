"""Calls that wait while a function's parameters change: `late check`, and the worker's test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import late
from late.app.handlers import handlers_of
from late.celery import Celery, chain
from late.control import Control
from late.testing import drain


def made(url: str, function: Callable[..., Any], **options: Any) -> Celery:
    app = Celery("shop", late_app=late.App(url), late_outside_transaction="open")
    app.task(name="shop.index", **options)(function)
    return app


def misfits(url: str, app: Celery) -> list[tuple[str, str, int]]:
    with Control(url) as control:
        found = control.misfits(app.late_app.tasks, ()).misfits
    return [(each.name, each.why, each.tasks) for each in found]


def old(order_id: int) -> None: ...
def wider(order_id: int, boost: int) -> None: ...
def optional(order_id: int, boost: int = 1, *, deep: bool = False) -> None: ...
def renamed(id: int) -> None: ...
def any_of(*args: Any, **kwargs: Any) -> None: ...
def bound(self: Any, order_id: int) -> None: ...
def bound_wider(self: Any, order_id: int, boost: int) -> None: ...
def of_error(request: Any, exc: Any, traceback: Any, n: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "why"),
    [
        (wider, {}, "missing a required argument: 'boost'"),
        (bound_wider, {"bind": True}, "missing a required argument: 'boost'"),
        (renamed, {}, "missing a required argument: 'id'"),
        (optional, {}, None),
        (any_of, {}, None),
        (bound, {"bind": True}, None),
        (wider, {"typing": False}, None),
    ],
)
def test_a_check_and_a_worker_see_that_calls_do_not_fit(
    late_db: str, function: Callable[..., Any], options: dict[str, Any], why: str | None
) -> None:
    made(late_db, old).tasks["shop.index"].delay(order_id=1)
    new = made(late_db, function, **options)
    found = misfits(late_db, new)
    assert [(name, tasks) for name, _, tasks in found] == ([("shop.index", 1)] if why else [])
    ended = drain(new.late_app, wait_s=0)
    if why is None:
        assert set(ended) == ({"dead"} if options.get("typing") is False else {"done"})
        return
    assert why in found[0][1]
    assert ended == {}
    assert drain(made(late_db, old).late_app, wait_s=5) == {"done": 1}


def test_positional_arguments_are_counted(late_db: str) -> None:
    made(late_db, optional).tasks["shop.index"].delay(1, 2)
    ((name, why, _),) = misfits(late_db, made(late_db, old))
    assert (name, "too many positional arguments" in why) == ("shop.index", True)
    assert misfits(late_db, made(late_db, wider)) == []


def test_stages_that_wait_for_a_result_or_an_error_are_checked(late_db: str) -> None:
    app = made(late_db, old)
    first = app.task(name="shop.first")(old)
    failed = app.task(name="shop.failed")(of_error)
    chain(first.s(1), app.tasks["shop.index"].s()).apply_async(link_error=failed.s(7))
    assert misfits(late_db, app) == []
    new = made(late_db, wider)
    new.task(name="shop.first")(old)
    new.task(name="shop.failed")(wider)
    assert [name for name, _, _ in misfits(late_db, new)] == ["shop.failed", "shop.index"]


@pytest.mark.parametrize(
    ("function", "options", "same"),
    [
        (lambda order_id: None, {}, True),
        (bound, {"bind": True}, True),
        (wider, {}, False),
        (renamed, {}, False),
        (optional, {}, False),
        (any_of, {}, False),
        (old, {"typing": False}, False),
    ],
)
def test_the_fingerprint_is_of_the_functions_parameters(
    late_db: str, function: Callable[..., Any], options: dict[str, Any], same: bool
) -> None:
    one, other = made(late_db, old), made(late_db, function, **options)
    assert (handlers_of(one.late_app) == handlers_of(other.late_app)) is same

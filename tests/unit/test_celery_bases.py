"""The class of tasks: its `__call__` around each attempt, `base=`, `task_cls=` and `app.Task`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import celery as theirs
import pytest

import late
from late import celery
from late.testing import drain

context: ContextVar[str | None] = ContextVar("context", default=None)
Seen = list[tuple[Any, ...]]


@contextmanager
def app_context(name: str = "flask") -> Iterator[None]:
    token = context.set(name)
    try:
        yield
    finally:
        context.reset(token)


def where() -> str | None:
    return context.get()


class ByRun(celery.Task):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with app_context():
            return self.run(*args, **kwargs)


class BySuper(celery.Task):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with app_context():
            return super().__call__(*args, **kwargs)


@pytest.fixture
def app(late_db: str) -> celery.Celery:
    return made(late_db)


def made(url: str, **options: Any) -> celery.Celery:
    return celery.Celery("shop", late_app=late.App(url), late_outside_transaction="open", **options)


@pytest.mark.parametrize("base", [ByRun, BySuper])
@pytest.mark.parametrize("eager", [True, False])
def test_the_call_of_a_class_wraps_each_attempt_with_its_request(
    app: celery.Celery, base: type[celery.Task], eager: bool
) -> None:
    seen: Seen = []

    @app.task(base=base, bind=True, name="add", default_retry_delay=0)
    def add(self: celery.Task, x: int) -> int:
        request = self.request
        seen.append((context.get(), request.id, request.retries, request.called_directly))
        if request.retries == 0:
            raise self.retry()
        return x + 1

    if eager:
        result = add.apply((1,))
    else:
        result = add.delay(1)
        assert drain(app.late_app) == {"done": 1}
    assert result.get(timeout=0) == 2
    assert seen == [("flask", result.id, 0, False), ("flask", result.id, 1, False)]


def test_a_direct_call_in_such_a_task_is_one(app: celery.Celery) -> None:
    seen: Seen = []

    @app.task(base=BySuper, bind=True, name="count")
    def count(self: celery.Task, x: int) -> None:
        seen.append((x, context.get(), self.request.called_directly))
        if x:
            self(x - 1)

    count.apply((1,))
    assert seen == [(1, "flask", False), (0, "flask", True)]


@pytest.mark.parametrize("task_cls", [ByRun, f"{__name__}:ByRun", f"{__name__}.ByRun"])
def test_tasks_of_an_app_have_its_class_but_for_their_own_base(
    late_db: str, task_cls: object
) -> None:
    app = made(late_db, task_cls=task_cls)
    of_app = app.task(name="of_app")(where)
    own = app.task(name="own", base=celery.Task)(where)
    assert app.Task.__name__ == "ByRun"
    assert (of_app.apply().get(), own.apply().get()) == ("flask", None)


def test_a_class_that_comes_later_is_that_of_the_tasks_before_too(app: celery.Celery) -> None:
    before = app.task(name="before")(where)
    own = app.task(name="own", base=BySuper)(where)

    class Later(app.Task):  # type: ignore[name-defined,misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with app_context("later"):
                return super().__call__(*args, **kwargs)

    app.Task = Later
    after = app.task(name="after")(where)
    assert [each.apply().get() for each in (before, own, after)] == ["later", "flask", "later"]
    assert isinstance(before, Later)
    assert before.delay() is not None
    assert drain(app.late_app) == {"done": 1}


def test_a_class_of_an_app_may_be_a_name_of_its_class(late_db: str) -> None:
    class Own(celery.Celery):
        task_cls = ByRun

    app = Own("shop", late_app=late.App(late_db))
    assert app.task(name="f")(where).apply().get() == "flask"


def test_what_comes_too_late_for_tasks_is_named(
    app: celery.Celery, caplog: pytest.LogCaptureFixture
) -> None:
    app.task(name="own", base=ByRun)(where)
    with caplog.at_level(logging.WARNING, "late.celery"):
        app.Task = ByRun
        assert not caplog.messages
        app.task(name="f")(where)
        app.Task = type("Slow", (celery.Task,), {"queue": "slow", "max_retries": 9})
    [message] = caplog.messages
    assert message.startswith("queue, max_retries of Slow: set after 1 tasks")


def test_a_shared_task_has_the_class_of_the_app_that_calls_it(
    late_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.celery.app._shared", [])  # It goes to all apps of later.
    shared = celery.shared_task(name="shared")(where)
    with made(late_db, task_cls=ByRun) as one, made(late_db) as other:
        assert shared.app is other
        assert shared.apply().get() is None
        one.set_default()
        assert shared.app is one
        assert shared.apply().get() == "flask"
        assert celery.AsyncResult("x").app is one


def test_delay_goes_through_apply_async_of_the_class(app: celery.Celery) -> None:
    class Queued(celery.Task):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            return super().apply_async(args, kwargs, **{"headers": {"tenant": "a"}, **options})

    @app.task(base=Queued, bind=True, name="headers")
    def headers(self: celery.Task) -> Any:
        return self.request.headers

    results = [headers.delay(), headers.s().delay()]
    assert drain(app.late_app) == {"done": 2}
    assert [each.get(timeout=0)["tenant"] for each in results] == ["a", "a"]


@pytest.mark.parametrize("base", [theirs.Task, type("Once", (theirs.Task,), {}), object, "os:path"])
def test_a_class_of_another_package_is_refused(app: celery.Celery, base: Any) -> None:
    with pytest.raises(celery.NotSupported, match=r"does not derive from late\.celery\.Task"):
        app.task(base=base, name="f")(where)
    with pytest.raises(celery.NotSupported, match=r"app\.Task: "):
        app.Task = base

"""Small names of Celery that tasks import: `current_app`, `current_task`, states, loggers, ids."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import late
from late import celery
from late.celery import current_app, current_task, exceptions, states
from late.celery.utils.log import get_task_logger
from late.errors import ConfigError
from late.testing import drain


@pytest.fixture
def app(late_db: str) -> Iterator[celery.Celery]:
    options = {"late_app": late.App(late_db), "late_outside_transaction": "open"}
    with celery.Celery("shop", **options) as found:  # type: ignore[arg-type]
        yield found


def add(x: int, y: int = 1) -> int:
    return x + y


def test_the_current_app_is_the_one_that_was_made_last(app: celery.Celery) -> None:
    task = current_app.task(name="add")(add)
    assert current_app
    assert current_app.tasks["add"] is task is app.tasks["add"]
    current_app.conf.timezone = "Europe/Vienna"
    current_app.Task = type("Own", (celery.Task,), {})
    assert (app.conf.timezone, app.Task.__name__) == ("Europe/Vienna", "Own")
    assert repr(current_app) == repr(app)
    result = current_app.send_task("add", (1,))
    assert drain(app.late_app) == {"done": 1}
    assert result.get(timeout=0) == 2


def test_without_an_app_the_current_one_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("late.celery.app._apps", [])
    with pytest.raises(ConfigError, match="import the module that makes it"):
        current_app.tasks  # noqa: B018


def test_the_current_task_is_the_one_that_runs_here(app: celery.Celery) -> None:
    seen: list[Any] = []

    @app.task(name="own")
    def own() -> None:
        seen.append((current_task.request.id, current_task.name, bool(current_task)))
        assert app.current_task is app.tasks["own"]

    assert not current_task
    assert app.current_task is None
    with pytest.raises(AttributeError):
        current_task.request  # noqa: B018
    results = [own.delay(), own.apply()]
    assert drain(app.late_app) == {"done": 1}
    assert sorted(seen) == sorted((each.id, "own", True) for each in results)


def test_a_call_of_a_task_by_its_name_is_a_value(app: celery.Celery) -> None:
    app.task(name="add")(add)
    found = celery.signature("add", (1,), {"y": 5}, countdown=2)
    assert repr(found) == "add(1, y=5)"
    assert found.options == {"countdown": 2}
    assert celery.signature(found) == found
    assert celery.signature(found) is not found
    later = celery.subtask("add", args=(1,), options={"queue": "x"}, immutable=True, app=app)
    assert (later.immutable, later.options) == (True, {"queue": "x"})
    assert (celery.signature("add", (1,)) | celery.signature("add")).apply().get() == 3


def test_an_id_a_logger_and_states_are_as_in_celery() -> None:
    assert uuid.UUID(celery.uuid()).version == 4
    assert get_task_logger("shop.tasks") is logging.getLogger("shop.tasks")
    assert {"SUCCESS", "FAILURE", "REVOKED"} == states.READY_STATES
    assert states.READY_STATES | {"PENDING", "RETRY"} <= states.ALL_STATES
    assert exceptions.TimeoutError is TimeoutError


def test_a_result_takes_the_keywords_of_celery_and_tells_the_error(app: celery.Celery) -> None:
    result = app.task(name="add")(add).delay("x")
    waiting = (result.info, result.traceback)
    assert waiting == (None, None)
    assert drain(app.late_app) == {"dead": 1}
    error = result.get(timeout=0, propagate=False, interval=0.1, disable_sync_subtasks=False)
    assert repr(result.info) == repr(error)
    assert result.traceback.startswith("TypeError: ")
    assert app.AsyncResult("not-there").traceback is None


def test_a_retry_may_name_the_arguments_that_it_has(app: celery.Celery) -> None:
    @app.task(bind=True, name="again", default_retry_delay=0)
    def again(self: celery.Task, x: int, y: int = 0) -> int:
        if self.request.retries == 0:
            raise self.retry(args=(x,), kwargs={"y": y})
        if self.request.retries == 1:
            raise self.retry(args=[x])
        if y:
            raise self.retry(kwargs={"y": 0})
        raise self.retry(args=(x + 1,))

    results = [again.delay(1, y=2), again.delay(1, y=0)]
    assert drain(app.late_app) == {"dead": 2}
    for result in results:
        assert "a retry has the arguments of the task" in result.traceback
        assert app.late_app.handle(result.id).failure().attempts == 3  # type: ignore[union-attr]

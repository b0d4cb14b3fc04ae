"""Tasks of `late.celery` in a worker: transactions, retries, outcomes, results."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy.orm import Session

import late
from late import celery
from late.control import Control
from late.errors import InvalidPolicy, TaskEnded
from late.outbox import connect
from late.schema.engine import make_engine
from late.testing import drain

Runs = list[tuple[Any, ...]]


@pytest.fixture
def app(url: str) -> celery.Celery:
    return celery.Celery("shop", late_app=late.App(url))


def call(app: celery.Celery, task: Any, *args: Any, **options: Any) -> celery.AsyncResult:
    with connect(app.late_app.url) as tx, celery.transaction(tx):
        found: celery.AsyncResult = task.apply_async(args, **options)
    return found


def test_a_call_commits_and_rolls_back_with_the_transaction(app: celery.Celery) -> None:
    @app.task
    def double(price: Decimal, *, on: datetime) -> dict[str, Any]:
        return {"twice": price * 2, "on": on}

    on = datetime(2026, 1, 2, tzinfo=UTC)
    with connect(app.late_app.url) as tx, celery.transaction(tx):
        kept = double.delay(Decimal("1.10"), on=on)
    gone: list[celery.AsyncResult] = []

    def fails() -> None:
        with connect(app.late_app.url) as tx, celery.transaction(tx):
            gone.append(double.delay(Decimal("3"), on=on))
            raise RuntimeError("roll back")

    with pytest.raises(RuntimeError, match="roll back"):
        fails()
    assert kept.state == "PENDING"
    assert drain(app.late_app) == {"done": 1}
    assert kept.get(timeout=0) == {"twice": Decimal("2.20"), "on": on}
    assert kept.successful()
    assert not gone[0].ready()


def test_without_a_transaction_a_call_opens_one_where_that_is_set(app: celery.Celery) -> None:
    task = app.task(name="plain")(lambda: 7)
    with pytest.raises(celery.NoTransaction):
        task.delay()
    app.conf.late_outside_transaction = "open"
    result = task.delay()
    assert drain(app.late_app) == {"done": 1}
    assert result.get(timeout=0) == 7


def test_a_session_commits_and_rolls_back_its_tasks(app: celery.Celery) -> None:
    task = app.task(name="plain")(lambda: 7)
    engine = make_engine(app.late_app.url)
    with Session(engine) as session, celery.transaction(session):
        kept = task.delay()
        session.commit()
        gone = task.delay()
        session.rollback()
    engine.dispose()
    assert drain(app.late_app) == {"done": 1}
    assert kept.successful()
    assert not gone.ready()


def test_what_a_call_asks_for_is_in_the_row(app: celery.Celery) -> None:
    task = app.task(name="plain", expires=7200, priority=2)(lambda: 7)
    app.conf.timezone = "Europe/Berlin"
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
    plain = at.astimezone(ZoneInfo("Europe/Berlin")).replace(tzinfo=None)
    rows = {
        "countdown": call(app, task, countdown=3600, queue="slow", headers={"a": "b"}),
        "eta": call(app, task, eta=plain, priority=9, expires=None),
    }
    with Control(app.late_app.url) as control:
        soon, late_one = [control.tasks.show(rows[name].id) for name in ("countdown", "eta")]
    assert (soon.queue, soon.headers) == ("slow", {"a": "b"})
    hour_us = 3_600_000_000
    assert soon.options == {"delay_us": hour_us, "expires_in_us": 2 * hour_us, "priority": 20}
    assert late_one.options == {"at_us": int(at.timestamp()) * 1_000_000, "priority": 90}
    with pytest.raises(InvalidPolicy, match="and 9 starts first"):
        call(app, task, priority=10)


def test_a_soft_limit_is_raised_in_the_task_and_ends_it(app: celery.Celery) -> None:
    seen: Runs = []

    @app.task(soft_time_limit=0.3, autoretry_for=(OSError,))
    def slow(catches: bool) -> str:
        try:
            while True:
                time.sleep(0.01)
        except celery.SoftTimeLimitExceeded:
            seen.append((catches,))
            if catches:
                return "in time"
            raise

    caught, out = call(app, slow, True), call(app, slow, False)
    assert drain(app.late_app) == {"done": 1, "dead": 1}
    assert caught.get(timeout=0) == "in time"
    assert out.failed()
    assert sorted(seen) == [(False,), (True,)]


@pytest.mark.parametrize("automatic", [True, False])
def test_retries_end_with_a_success_or_with_the_error(app: celery.Celery, automatic: bool) -> None:
    seen: Runs = []
    at_once = {"autoretry_for": (ValueError,), "retry_kwargs": {"max_retries": 2, "countdown": 0}}
    options: dict[str, Any] = at_once if automatic else {}

    @app.task(bind=True, max_retries=2, **options)
    def flaky(self: celery.Task, name: str, fails: int) -> str:
        seen.append((name, self.request.retries, self.request.id))
        try:
            if self.request.retries < fails:
                raise ValueError("not yet")
        except ValueError as error:
            if automatic:
                raise
            self.retry(exc=error, countdown=0)
        return "done"

    good, bad = call(app, flaky, "good", 2), call(app, flaky, "bad", 3)
    assert drain(app.late_app) == {"done": 1, "dead": 1}
    assert [run for run in seen if run[0] == "good"] == [("good", n, good.id) for n in range(3)]
    assert [run for run in seen if run[0] == "bad"] == [("bad", n, bad.id) for n in range(3)]
    assert good.get(timeout=0) == "done"
    assert bad.failed()
    with pytest.raises(TaskEnded):
        bad.get(timeout=0)


def failing(error: BaseException, runs: Runs) -> Callable[[], None]:
    def fail() -> None:
        runs.append(())
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ValueError("no"), "dead"),
        (celery.Reject("no"), "dead"),
        (celery.SoftTimeLimitExceeded(), "dead"),
        (celery.Ignore(), "done"),
    ],
)
def test_what_a_task_raises_ends_it_at_the_first_attempt(
    app: celery.Celery, error: BaseException, ends: str
) -> None:
    runs: Runs = []
    call(app, app.task(name="fails")(failing(error, runs)))
    assert drain(app.late_app) == {ends: 1}
    assert len(runs) == 1


def test_the_methods_of_a_base_class_are_called(app: celery.Celery) -> None:
    seen: Runs = []

    class Told(celery.Task):
        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(("failure", str(exc), task_id))

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            seen.append(("success", retval, task_id))

    good = app.task(base=Told, name="good")(lambda: 1)
    bad = app.task(base=Told, name="bad")(failing(ValueError("no"), []))
    ids = call(app, good).id, call(app, bad).id
    drain(app.late_app)
    assert set(seen) == {("success", 1, ids[0]), ("failure", "no", ids[1])}

"""Tasks of `late.celery` in a worker: transactions, retries, outcomes, results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.orm import Session

import late
from late import celery
from late.celery import signals
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
    plain = at.replace(tzinfo=None)  # It is UTC whatever the zone, as in Celery.
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


@pytest.fixture
def told() -> Iterator[list[tuple[str, Any, dict[str, Any]]]]:
    """What the signals of tasks and calls have told: the signal, the sender, the keywords."""
    seen: list[tuple[str, Any, dict[str, Any]]] = []

    def receiver(signal: signals.Signal, sender: Any, **named: Any) -> None:
        seen.append((signal.name, sender, named))

    every = [found for found in vars(signals).values() if isinstance(found, signals.Signal)]
    for signal in every:
        signal.connect(receiver, weak=False)
    yield seen
    for signal in every:
        assert signal.disconnect(receiver)


def _args(named: dict[str, Any]) -> Any:
    return named["request"].args if "request" in named else named.get("args")


def test_signals_have_what_celery_gives(
    app: celery.Celery, told: list[tuple[str, Any, dict[str, Any]]]
) -> None:
    @app.task(bind=True, max_retries=1, name="flaky")
    def flaky(self: celery.Task, x: int, fails: bool) -> int:
        if self.request.retries == 0:
            self.retry(exc=ValueError("not yet"), countdown=0)
        if fails:
            raise KeyError("no")
        return x

    result = call(app, flaky, 1, False, headers={"a": "b"}, queue="fast")
    published, told[:] = list(told), []
    bad = call(app, flaky, 2, True)
    del told[:]
    assert [name for name, _, _ in published] == ["before_task_publish", "after_task_publish"]
    for _, sender, named in published:
        assert (sender, named["routing_key"]) == ("flaky", "fast")
        assert named["body"] == ([1, False], {}, {})
        assert named["headers"] == {"a": "b", "id": result.id, "task": "flaky"}

    assert drain(app.late_app) == {"done": 1, "dead": 1}
    assert (told[0][0], told[-1][0]) == ("worker_ready", "worker_shutdown")
    about = {"task_id": result.id, "args": [1, False], "kwargs": {}}
    of_task = [
        (name, named)
        for name, sender, named in told
        if sender is flaky and _args(named) == [1, False]
    ]
    assert [name for name, _ in of_task] == [
        "task_prerun", "task_retry", "task_postrun", "task_prerun", "task_postrun",
    ]  # fmt: skip
    assert of_task[0] == ("task_prerun", {"task": flaky, **about})
    reason = of_task[1][1]["reason"]
    assert (str(reason.exc), of_task[1][1]["request"].id) == ("not yet", result.id)
    assert of_task[2][1] == {"task": flaky, "retval": reason, "state": "RETRY", **about}
    assert ("task_success", flaky, {"result": 1}) in told
    assert of_task[4][1] == {"task": flaky, "retval": 1, "state": "SUCCESS", **about}

    failure = next(named for name, _, named in told if name == "task_failure")
    assert (failure["task_id"], failure["args"], failure["einfo"]) == (bad.id, [2, True], None)
    assert isinstance(failure["exception"], KeyError)
    assert failure["traceback"] is not None


def test_a_receiver_that_raises_harms_nothing(
    app: celery.Celery, caplog: pytest.LogCaptureFixture
) -> None:
    task = app.task(name="plain")(lambda: 7)

    def fails(**named: Any) -> None:
        raise RuntimeError("a receiver")

    for signal in (signals.task_prerun, signals.task_success, signals.task_postrun):
        signal.connect(fails, sender=task)
    result = call(app, task)
    assert drain(app.late_app) == {"done": 1}
    assert result.get(timeout=0) == 7
    assert [record.getMessage() for record in caplog.records if record.name == "late.celery"] == [
        f"a receiver of {name} failed" for name in ("task_prerun", "task_success", "task_postrun")
    ]


def test_headers_of_a_receiver_reach_the_task(app: celery.Celery) -> None:
    @app.task(bind=True, name="traced")
    def traced(self: celery.Task) -> str:
        return str(self.request.headers["trace"])

    @signals.before_task_publish.connect(sender="traced")
    def add(headers: dict[str, str], **_: Any) -> None:
        headers["trace"] = "t1"

    result = call(app, traced)
    drain(app.late_app)
    assert result.get(timeout=0) == "t1"


def test_a_signature_is_a_call_for_later(app: celery.Celery) -> None:
    task = app.task(name="joined")(lambda *args, **kwargs: [list(args), kwargs])
    plain, fixed = task.s(2, b=1), task.si(3)
    assert plain(1, c=2) == [[1, 2], {"b": 1, "c": 2}]
    with connect(app.late_app.url) as tx, celery.transaction(tx):
        results = [
            plain.delay(1),
            fixed.apply_async((1,)),
            plain.clone((0,), queue="other").set(priority=3).apply_async(kwargs={"b": 5}),
            app.signature("joined", (8,), {"d": 4}).delay(),
        ]
    with Control(app.late_app.url) as control:
        row = control.tasks.show(results[2].id)
    assert (row.queue, row.options) == ("other", {"priority": 30})
    drain(app.late_app)
    assert [result.get(timeout=0) for result in results] == [
        [[1, 2], {"b": 1}],
        [[3], {}],
        [[0, 2], {"b": 5}],
        [[8], {"d": 4}],
    ]
    assert plain.options == {}


def test_revoke_joins_the_transaction_or_opens_one(app: celery.Celery) -> None:
    task = app.task(name="plain")(lambda: 7)
    results = [call(app, task, countdown=3600) for _ in range(3)]
    kept = call(app, task)
    results[0].revoke()
    app.control.revoke([results[1].id, results[2]])

    def gives_up() -> None:
        with connect(app.late_app.url) as tx, celery.transaction(tx):
            kept.revoke()
            raise RuntimeError("roll back")

    with pytest.raises(RuntimeError, match="roll back"):
        gives_up()
    assert drain(app.late_app) == {"done": 1, "cancelled": 3}
    assert [result.state for result in results] == ["REVOKED"] * 3
    assert kept.get(timeout=0) == 7

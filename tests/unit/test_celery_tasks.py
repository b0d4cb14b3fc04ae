"""Small things of Celery's interface that its own tests ask for."""

from __future__ import annotations

from typing import Any

import pytest

import late
from late import celery
from late.celery.router import Router
from late.testing import drain
from tests.unit.test_celery_router import Broker


@pytest.fixture
def app(late_db: str) -> celery.Celery:
    return celery.Celery("shop", late_app=late.App(late_db), late_outside_transaction="open")


def fail(fault: type[Exception] | Exception) -> None:
    raise fault


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1,), {}), ((1, 2), {"z": 3}), ((1, 2, 3), {}), ("xy", {}), ((), "xy")]
)
def test_a_call_that_cannot_run_is_refused_where_it_is_made(
    app: celery.Celery, args: Any, kwargs: Any
) -> None:
    @app.task(bind=True, name="add")
    def add(self: celery.Task, x: int, y: int) -> int:
        return x + y

    with pytest.raises(TypeError):
        add.apply_async(args, kwargs)
    assert drain(app.late_app) == {}


def test_the_check_of_arguments_can_be_left_out(app: celery.Celery) -> None:
    loose = app.task(name="loose", typing=False)(lambda x: x)
    loose.delay()
    assert drain(app.late_app) == {"dead": 1}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_router_refuses_such_a_call_on_either_side(late_db: str, share: float) -> None:
    broker = Broker()
    router = Router(late.App(late_db), broker)
    router.shares = type("All", (), {"of": lambda self, task: share})()
    send = router.task(name="shop.send")(lambda n: n)
    with pytest.raises(TypeError):
        send.delay()
    assert drain(router.late_app) == {}
    assert broker.sent == []


@pytest.mark.parametrize("automatic", [(), (Exception,)])
@pytest.mark.parametrize("eager", [True, False])
def test_a_retry_that_is_out_of_retries_is_the_end(
    app: celery.Celery, automatic: tuple[type[Exception], ...], eager: bool
) -> None:
    runs = []

    @app.task(bind=True, name="gives_up", autoretry_for=automatic, default_retry_delay=0)
    def gives_up(self: celery.Task) -> None:
        runs.append(self.request.retries)
        self.retry(exc=ValueError("enough"), countdown=0, max_retries=1)

    if eager:
        with pytest.raises(ValueError, match="enough"):
            gives_up.apply().get()
    else:
        gives_up.delay()
        assert drain(app.late_app) == {"dead": 1}
    assert runs == [0, 1]


def test_the_error_of_no_more_retries_names_the_arguments(app: celery.Celery) -> None:
    @app.task(bind=True, name="tired", max_retries=0)
    def tired(self: celery.Task, x: int, *, y: int) -> None:
        try:
            self.retry(countdown=0)
        except self.MaxRetriesExceededError as error:
            raise LookupError(error.task_args, error.task_kwargs) from error

    with pytest.raises(LookupError) as caught:
        tired.apply((1,), {"y": 2}).get()
    assert caught.value.args == ((1,), {"y": 2})


def test_who_waits_for_a_revoked_task_is_told_so(app: celery.Celery) -> None:
    plain = app.task(name="plain")(lambda: 7)
    revoked, failed = plain.apply_async(countdown=3600), app.task(name="bad")(fail).delay("no")
    revoked.revoke()
    assert drain(app.late_app) == {"cancelled": 1, "dead": 1}
    with pytest.raises(celery.TaskRevokedError):
        plain.AsyncResult(revoked.id).get(timeout=0)
    assert isinstance(revoked.get(timeout=0, propagate=False), celery.TaskRevokedError)
    assert not isinstance(failed.wait(timeout=0, propagate=False), celery.TaskRevokedError)


def test_an_id_of_celery_is_pending(app: celery.Celery) -> None:
    result = app.AsyncResult("dc4b9c6b-e825-4977-9910-d48de54a105e")
    assert (result.state, result.ready()) == ("PENDING", False)


def test_an_eager_result_can_be_waited_for_and_revoked(app: celery.Celery) -> None:
    result = app.task(name="bad")(fail).apply((KeyError("no"),))
    assert (result.name, result.state) == ("bad", "FAILURE")
    assert "KeyError: 'no'" in result.traceback
    assert isinstance(result.wait(propagate=False), KeyError)
    result.revoke()
    result.forget()
    with pytest.raises(celery.TaskRevokedError):
        result.get()
    assert (result.state, result.traceback) == ("REVOKED", None)


def test_a_task_has_the_name_of_its_function(app: celery.Celery) -> None:
    task = app.task(name="shop.fail")(fail)
    assert (task.__name__, task.__wrapped__) == ("fail", fail)


def test_a_task_reads_its_limits(app: celery.Celery) -> None:
    app.conf.update(task_time_limit=60)
    seen: list[Any] = []

    @app.task(bind=True, name="limited", soft_time_limit=45)
    def limited(self: celery.Task) -> None:
        seen.append((self.request.time_limit, self.request.timelimit))

    limited.apply()
    limited.delay()
    assert drain(app.late_app) == {"done": 1}
    assert seen == [(60, (60, 45))] * 2


def test_a_retry_takes_no_other_options(app: celery.Celery) -> None:
    @app.task(bind=True, name="again")
    def again(self: celery.Task, expires: float | None) -> int:
        if self.request.retries == 0:
            self.retry(countdown=0, expires=expires)
        return self.request.retries

    assert again.apply((None,)).get() == 1
    with pytest.raises(celery.NotSupported, match="expires"):
        again.apply((60,)).get()


@pytest.mark.parametrize("option", [{"on_conflict": "replace"}, {"max_wait": 60}])
def test_a_call_takes_no_options_of_a_debounce(app: celery.Celery, option: dict[str, Any]) -> None:
    task = app.task(name="shop.fail")(fail)
    with pytest.raises(celery.NotSupported, match=next(iter(option))):
        task.apply_async((None,), task_id="k", **option)


def test_a_task_is_made_once(app: celery.Celery) -> None:
    with pytest.raises(TypeError, match="more than once"):
        app.task(name="other")(app.task(name="shop.fail")(fail))
    assert set(app.tasks) >= {"shop.fail"}
    assert "other" not in app.tasks

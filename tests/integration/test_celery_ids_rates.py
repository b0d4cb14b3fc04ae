"""`task_id=` and `rate_limit=` of `late.celery`, in the database."""

from __future__ import annotations

from typing import Any

import pytest

import late
from late import celery
from late.control import Control
from late.errors import KeyConflict
from late.outbox import connect
from late.testing import drain
from tests.integration.fleet_kit import until, working


@pytest.fixture
def app(url: str) -> celery.Celery:
    return celery.Celery("shop", late_app=late.App(url))


def call(app: celery.Celery, task: Any, *args: Any, **options: Any) -> celery.AsyncResult:
    with connect(app.late_app.url) as tx, celery.transaction(tx):
        found: celery.AsyncResult = task.apply_async(args, **options)
    return found


def test_an_id_of_the_caller_is_the_task_s_and_names_one_task(app: celery.Celery) -> None:
    seen: list[tuple[str, int]] = []

    @app.task(bind=True, name="add")
    def add(self: Any, number: int) -> int:
        seen.append((self.request.id, number))
        return number + 1

    unknown = app.AsyncResult("order-7")
    assert unknown.state == "PENDING"
    with pytest.raises(TimeoutError, match="order-7"):
        unknown.get(timeout=0)
    first, again = (call(app, add, 1, task_id="order-7") for _ in range(2))
    assert first.id == again.id == "order-7"
    with pytest.raises(KeyConflict):
        call(app, add, 2, task_id="order-7")
    assert drain(app.late_app) == {"done": 1}
    assert seen == [("order-7", 1)]
    assert unknown.get(timeout=0) == 2
    assert unknown.successful()
    assert call(app, add, 1, task_id="order-7").state == "SUCCESS"
    assert drain(app.late_app) == {}


def test_an_id_of_the_caller_can_be_revoked(app: celery.Celery) -> None:
    task = app.task(name="plain")(lambda: None)
    result = call(app, task, task_id="b3c0ffee-0000-4000-8000-000000000001", countdown=3_000)
    app.control.revoke(result.id)
    assert drain(app.late_app)["cancelled"] == 1
    assert result.state == "REVOKED"


async def test_a_worker_sets_a_rate_where_the_queue_has_no_settings(
    app: celery.Celery, caplog: pytest.LogCaptureFixture
) -> None:
    limited = app.task(name="limited", rate_limit="6000/m")(lambda: None)
    kept = app.task(name="kept", rate_limit="5/s")(lambda: None)
    with Control(app.late_app.url) as control:
        control.queues.change("queue", app.queue_of(kept), {"paused": True})
        former = app.task(name="former", rate_limit="20/s")(lambda: None)
        same = app.task(name="same", rate_limit="2/s")(lambda: None)
        # What a worker with former code has set counts as well.
        control.queues.first_rates({app.queue_of(former): 10.0, app.queue_of(same): 2.0})
        result = call(app, limited)
        async with working(app.late_app):
            await until(result.ready)
        live = control.queues.live().queues
    assert live[app.queue_of(limited)].rate == 100.0
    assert live[app.queue_of(kept)].rate is None, "what an operator has set stays as it is"
    assert live[app.queue_of(former)].rate == 10.0
    told = [each.getMessage() for each in caplog.records if "rate_limit=" in each.msg]
    assert [each.partition(", and")[0] for each in told] == [
        "queue default.former has rate=10", "queue default.kept has no rate",
    ]  # fmt: skip
    assert "in the code is 20 tasks a second" in told[0]
    assert "`late queue set default.former rate=20`" in told[0]

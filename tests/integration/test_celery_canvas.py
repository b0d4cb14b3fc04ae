"""Celery's canvas in a worker: chains, groups, chords and links are workflows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

import late
from late import celery
from late.celery import chain, chord, group, signals
from late.errors import TaskEnded
from late.outbox import connect
from late.testing import drain
from tests.integration.control_kit import rows

AT = datetime(2026, 1, 2, 3, tzinfo=UTC)


@pytest.fixture
def app(url: str) -> celery.Celery:
    app = celery.Celery("shop", late_app=late.App(url, shards=4), late_outside_transaction="open")
    app.seen = []  # type: ignore[attr-defined]

    @app.task(name="add", ignore_result=True)
    def add(x: Any, y: Any = 0) -> Any:
        return x + y

    @app.task(name="same")
    def same(*args: Any, **kwargs: Any) -> Any:
        return [list(args), kwargs] if kwargs else list(args)

    @app.task(name="total")
    def total(numbers: list[Any], more: int = 0) -> Any:
        return sum(numbers) + more

    @app.task(name="fail")
    def fail(*args: Any) -> None:
        raise ValueError("unlucky")

    @app.task(name="ignore")
    def ignore(*args: Any) -> None:
        raise celery.Ignore

    @app.task(name="tell")
    def tell(*args: Any) -> None:
        app.seen.append(args)  # type: ignore[attr-defined]

    @app.task(name="told")
    def told(task_id: str, tag: str = "") -> None:
        app.seen.append((task_id, tag))  # type: ignore[attr-defined]

    return app


def values(result: Any) -> Any:
    return result.get(timeout=0)


def test_a_result_is_the_first_argument_and_keeps_its_type(app: celery.Celery) -> None:
    add, same = app.tasks["add"], app.tasks["same"]
    first = chain(add.s(Decimal("1.10"), Decimal(1)), same.s(AT, key=1), same.si(2)).delay()
    second = (add.s(1) | same.s()).delay(4)
    assert drain(app.late_app) == {"done": 5}
    assert values(first) == [2]
    assert values(first.parent) == [[Decimal("2.10"), AT], {"key": 1}]
    assert values(second) == [5]
    assert first.parent.parent.parent is None


# fmt: off
SHAPES: list[tuple[Callable[..., Any], Any]] = [
    (lambda a, t, s: chord([a.s(1, 2), a.s(3, 4)])(t.s(more=5)), 15),
    (lambda a, t, s: (group(a.s(n, n) for n in range(3)) | t.s()).delay(), 6),
    (lambda a, t, s: chain(a.s(1, 1), group(a.s(1), a.s(2)), t.s())(), 7),
    (lambda a, t, s: chain(group(a.s(1), a.s(2)), group(t.s(1), t.si([9])))(), [4, 9]),
    (lambda a, t, s: group(a.s(1, 2) | s.s(), s.si(5)).delay(), [[3], [5]]),
    (lambda a, t, s: group(group(a.s(1), a.s(2)), a.s(3)).delay(4), [5, 6, 7]),
    (lambda a, t, s: chord([chord([a.s(1), a.s(2)], t.s()), a.s(4)], s.s()).delay(1), [[5, 5]]),
    (lambda a, t, s: chord([], s.s(1))(), [[], 1]),
    (lambda a, t, s: chord([a.s(1)], s.s())(), [[1]]),
    (lambda a, t, s: chain(group(a.s(1)), s.s())(), [1]),
    (lambda a, t, s: chain(a.s(1), group([]), s.s())(), [1]),
    (lambda a, t, s: group([]).delay(), []),
    (lambda a, t, s: group([chain(a.s(1), group(s.s(), s.s(2)))]).delay(), [[1], [1, 2]]),
    (lambda a, t, s: chain(chord([a.s(1), a.s(2)], t.s()), s.s(3), s.s())(), [[3, 3]]),
    (lambda a, t, s: group(s.s(1), s.s(2)).set(immutable=True).delay(3), [[1], [2]]),
]
# fmt: on


@pytest.mark.parametrize("eager", [False, True])
def test_shapes(app: celery.Celery, eager: bool) -> None:
    app.conf.task_always_eager = eager
    kept = app.task(name="kept")(lambda x, y=0: x + y)
    tasks = kept, app.tasks["total"], app.tasks["same"]
    results = [make(*tasks) for make, _ in SHAPES]
    assert drain(app.late_app).keys() == (set() if eager else {"done"})
    assert list(map(values, results)) == [value for _, value in SHAPES]
    assert all(result.successful() for result in results)


def test_an_error_ends_it_and_the_id_goes_to_link_error(app: celery.Celery) -> None:
    add, fail, told = app.tasks["add"], app.tasks["fail"], app.tasks["told"]
    result = chain(add.s(1, 1), fail.s(), add.s(1)).apply_async(link_error=told.s(tag="x"))
    assert drain(app.late_app) == {"done": 2, "dead": 1}
    assert app.seen == [(result.parent.id, "x")]  # type: ignore[attr-defined]
    assert (result.state, result.parent.state) == ("PENDING", "FAILURE")
    with pytest.raises(TaskEnded, match=result.parent.id):
        result.get(timeout=120)
    assert isinstance(group([add.s(1)]).delay().results[0], celery.AsyncResult)


@pytest.mark.parametrize("first", ["chain", "chord"])
def test_a_link_error_gets_the_request_the_error_and_its_text(
    app: celery.Celery, first: str
) -> None:
    add, fail, total = (app.tasks[name] for name in ("add", "fail", "total"))
    seen: list[Any] = []

    @app.task(name="on_error")
    def on_error(request: Any, exc: Exception, traceback: str, tag: str = "") -> None:
        seen.append((request, exc, traceback, tag))

    errback = on_error.s("x")
    if first == "chain":
        chain(add.s(1), fail.s(AT)).apply_async(link_error=errback)
    else:
        chord([fail.s(2, AT), add.s(1)])(total.s().on_error(errback))
    assert drain(app.late_app)["dead"] == 1
    [(request, exc, traceback, tag)] = seen
    assert (request.task, request.args, request.retries) == ("fail", [request.args[0], AT], 0)
    assert app.AsyncResult(request.id).failed()
    assert (type(exc), str(exc), tag) == (ValueError, "unlucky", "x")
    assert traceback.startswith("ValueError: unlucky [test_celery_canvas.py:")


def test_a_link_error_hears_of_a_task_that_has_expired(app: celery.Celery) -> None:
    seen: list[Any] = []
    on_error = app.task(name="on_error")(lambda *args: seen.append(args))
    result = app.tasks["add"].apply_async((1,), expires=0.001, link_error=on_error.s())
    assert drain(app.late_app) == {"expired": 1, "done": 1}
    [(request, exc, traceback)] = seen
    assert request.id == result.id
    assert isinstance(exc, celery.TaskRevokedError)
    assert traceback == f"task {result.id} ended as expired"


def test_the_body_of_a_chord_has_a_link_error(app: celery.Celery) -> None:
    add, fail, total, told = (app.tasks[name] for name in ("add", "fail", "total", "told"))
    result = chord([fail.s(), add.s(1)])(total.s().on_error(told.si("gone")))
    assert drain(app.late_app) == {"done": 2, "dead": 1}
    assert app.seen == [("gone", "")]  # type: ignore[attr-defined]
    assert result.parent.failed()
    assert result.parent.completed_count() == 1
    assert not result.parent.waiting()
    with pytest.raises(TaskEnded):
        result.get(timeout=120)


def test_links_follow_the_task_that_was_called(app: celery.Celery) -> None:
    add, same, tell = app.tasks["add"], app.tasks["same"], app.tasks["tell"]
    one = same.apply_async((1,), link=[tell.s(2), tell.si(3)])
    two = chain(add.s(1, 1), same.s()).apply_async(link=tell.s(4))
    sig = same.s(5)
    assert sig.link(tell.s(6)) == tell.s(6)
    three = sig.delay()
    assert drain(app.late_app) == {"done": 8}
    assert [values(each) for each in (one, two, three)] == [[1], [2], [5]]
    assert sorted(app.seen, key=str) == [  # type: ignore[attr-defined]
        (3,), ([1], 2), ([2], 4), ([5], 6),
    ]  # fmt: skip


def test_ignore_starts_nothing_after_it(app: celery.Celery) -> None:
    ignore, tell = app.tasks["ignore"], app.tasks["tell"]
    result = chain(ignore.s(), tell.s()).delay()
    alone = ignore.delay()
    assert drain(app.late_app) == {"discarded": 1, "done": 1}
    assert result.parent.state == "IGNORED"
    assert alone.state == "SUCCESS"
    assert app.seen == []  # type: ignore[attr-defined]


def test_options_are_for_the_first_tasks_and_commit_with_the_rows(app: celery.Celery) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    with connect(app.late_app.url) as tx, celery.transaction(tx):
        rolled = chain(add.s(1, 1), add.s(2)).delay()
        tx.rollback()
    with connect(app.late_app.url) as tx, celery.transaction(tx):
        one = chain(add.s(1).set(priority=3), add.s(2)).apply_async((5,), queue="fast")
        two = chord([add.s(1, 2)], total.s()).apply_async(queue="slow", countdown=3_000)
    found = rows(app.late_app.url, "select task_id, queue, options from late_stage")
    shown = {str(task_id): (queue, json.loads(options)) for task_id, queue, options in found}
    assert [shown[each.id] for each in (one.parent, one, two.parent[0], two)] == [
        ("fast", {"priority": 30, "stage": True}),
        ("default", {"stage": True}),
        ("slow", {"delay_us": 3_000_000_000, "stage": True}),
        ("slow", {"stage": True}),
    ]
    assert rolled.state == "PENDING"
    assert len(shown) == 4


def test_signals_tell_of_each_task(app: celery.Celery) -> None:
    told: list[Any] = []

    @signals.before_task_publish.connect(weak=False)
    def before(sender: str, headers: dict[str, str], body: Any, **_: Any) -> None:
        headers["trace"] = "t"
        told.append((sender, body[0]))

    @signals.after_task_publish.connect(weak=False)
    def after(sender: str, headers: dict[str, str], **_: Any) -> None:
        told.append((sender, headers["id"]))

    try:
        result = chain(app.tasks["add"].s(1, 2), app.tasks["same"].s(4)).delay()
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    ids = [("add", result.parent.id), ("same", result.id)]
    assert told == [("add", [1, 2]), ("same", [4]), *ids]
    assert rows(app.late_app.url, "select headers from late_stage") == [('{"trace":"t"}',)] * 2


def test_revoke_ends_the_whole(app: celery.Celery) -> None:
    add = app.tasks["add"]
    result = chain(add.s(1, 2).set(countdown=3_000), group(add.s(1), add.s(2))).delay()
    result.revoke()
    assert drain(app.late_app).keys() == {"cancelled"}
    assert rows(app.late_app.url, "select distinct state from late_stage") == [("cancelled",)]

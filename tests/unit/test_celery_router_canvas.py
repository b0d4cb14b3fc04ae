"""A canvas through the router: one workflow, or one order for Celery. Celery itself, in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain, chord, group

import late
from late import celery
from late.celery.router import Router
from late.control import Control
from late.control.status.celery_shares import read
from late.errors import ConfigError
from late.outbox import connect
from late.testing import drain
from tests.integration.control_kit import rows


class Kept:
    """Celery's app with its signatures, whose calls are kept and not sent."""

    def __init__(self) -> None:
        self.app = Celery("shop", broker="memory://", backend="cache+memory://")
        self.sent: list[tuple[str, list[Any], str]] = []

        def keep(name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            self.sent.append((name, list(args or ()), options["task_id"]))
            return self.app.AsyncResult(options["task_id"])

        self.app.send_task = keep


LIMITS = {"limited": {"rate_limit": "1/d"}}


def add(x: Any, y: Any = 0) -> Any:
    return x + y


def total(numbers: list[int]) -> int:
    return sum(numbers)


def same(n: Any) -> Any:
    return n


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def router(late_db: str, kept: Kept) -> Router:
    router = Router(late.App(late_db), kept.app)
    router.shares = type("Known", (), {"of": lambda self, task: router.known.get(task, 0.0)})()
    router.known = {"shop.add": 1.0, "shop.total": 1.0}  # type: ignore[attr-defined]
    functions = {"add": add, "total": total, "other": same, "limited": same, "told": same}
    for name, function in functions.items():
        router.task(name=f"shop.{name}", **LIMITS.get(name, {}))(function)
    return router


def refused(router: Router) -> dict[str, dict[str, int]]:
    with Control(router.late_app.url) as control:
        found = read(control, since_us=0, group="default")
    return {each.task: each.unsupported for each in found if each.unsupported}


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda add, total: add.s(1, 2) | add.s(3), 6),
        (lambda add, total: chain(add.s(1), group(add.s(1), add.s(2)), total.s()), 5),
        (lambda add, total: chord([add.s(1), add.si(2)], total.s()), 3),
        (lambda add, total: chord(group(add.s(1), add.s(2)), total.s()) | add.s(1), 4),
        (lambda add, total: group(add.s(n) for n in range(3)), [0, 1, 2]),
        (lambda add, total: add.s(4), 4),
    ],
)
def test_a_canvas_of_tasks_on_late_is_a_workflow(
    router: Router, kept: Kept, make: Callable[..., Any], value: Any
) -> None:
    result = router.delay(make(router.tasks["shop.add"], router.tasks["shop.total"]))
    assert set(drain(router.late_app)) == {"done"}
    assert result.get(timeout=0) == value
    assert kept.sent == []
    assert refused(router) == {}


def test_tasks_on_both_sides_stay_on_celery_and_are_counted(router: Router, kept: Kept) -> None:
    add, other, limited = (router.tasks[f"shop.{name}"] for name in ("add", "other", "limited"))
    plain = kept.app.task(name="plain")(same)
    router.delay(add.s(1) | other.s())
    router.delay(chain(add.s(2), plain.s()))
    router.delay(limited.s(3) | add.s())
    router.delay(other.s(4) | other.s())
    router.apply_async(add.s(5) | add.s(), link_error=[other.s(), other.si()])
    assert kept.sent == []
    assert drain(router.late_app) == {"done": 5}
    assert sorted(args[0] for _, args, _ in kept.sent) == [1, 2, 3, 4, 5]
    assert refused(router) == {
        "shop.add": {"mixed": 2, "link_error": 1}, "shop.limited": {"rate_limit": 1},
    }  # fmt: skip
    assert rows(router.late_app.url, "select count(*) from late_stage") == [(0,)]


def test_celery_gets_a_canvas_after_the_commit_and_under_the_same_ids(
    router: Router, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    router.known.clear()  # type: ignore[attr-defined]
    add = router.tasks["shop.add"]
    with connect(router.late_app.url) as tx, celery.transaction(tx):
        router.delay(group(add.s(9)))
        tx.rollback()
    with connect(router.late_app.url) as tx, celery.transaction(tx):
        many = router.delay(group(add.s(1), add.s(2) | add.s(3)))
    send, faults = kept.app.send_task, iter([ConnectionError("no broker")])

    def fails(*given: Any, **options: Any) -> Any:
        found = send(*given, **options)
        for fault in faults:
            raise fault
        return found

    monkeypatch.setattr(kept.app, "send_task", fails)
    assert drain(router.late_app, wait_s=5) == {"done": 1}
    ids = [(args, id) for _, args, id in kept.sent]
    assert ids[0] == ids[1]
    assert ids[1][1] == many.results[0].id
    assert [args for args, _ in ids[1:]] == [[1], [2]]


def test_what_the_router_cannot_send(router: Router, kept: Kept) -> None:
    plain = kept.app.task(name="plain")(same)
    for canvas in (plain.s(1), router.tasks["shop.add"].starmap([(1, 2)])):
        with pytest.raises(ConfigError):
            router.delay(canvas)
    with pytest.raises(TypeError):
        router.delay(router.tasks["shop.add"].s(1, 2, 3) | router.tasks["shop.add"].s())
    kept.app.conf.task_always_eager = True
    assert router.delay(router.tasks["shop.add"].s(1) | router.tasks["shop.add"].s(2)).get() == 3

"""Options of calls and decorators that Celery's users give: taken, refused, left to Celery."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import celery as theirs
import pytest

import late
from late import celery
from late.celery.router import Router
from late.dispatcher.local import child_main
from late.errors import InvalidName
from late.testing import drain


def add(x: int, y: int) -> int:
    return x + y


def run() -> None: ...


@pytest.fixture
def app(late_db: str) -> celery.Celery:
    return celery.Celery("shop", late_app=late.App(late_db), late_outside_transaction="open")


@pytest.mark.parametrize("queue", ["my queue", "ünï/!", "late.commands"])
def test_a_queue_that_cannot_be_is_an_error_of_the_call(app: celery.Celery, queue: str) -> None:
    task = app.task(name="add")(add)
    with pytest.raises(InvalidName):
        task.apply_async((1, 1), queue=queue)
    with pytest.raises(InvalidName):
        celery.chain(task.s(1, 1).set(queue=queue), task.s(1)).delay()
    assert drain(app.late_app) == {}


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"expires": -1}, {"expired": 1}),
        ({"expires": 0}, {"expired": 1}),
        ({"link": [], "link_error": None}, {"done": 1}),
        ({"add_to_parent": False, "argsrepr": "x", "kwargsrepr": "y"}, {"done": 1}),
    ],
)
def test_options_that_celery_takes(
    app: celery.Celery, options: dict[str, Any], ends: dict[str, int]
) -> None:
    app.task(name="add")(add).apply_async((1, 1), **options)
    assert drain(app.late_app) == ends


@pytest.mark.parametrize("option", ["lane", "process", "transaction", "unique_key"])
def test_a_setting_of_tasks_of_late_itself_is_refused(app: celery.Celery, option: str) -> None:
    with pytest.raises(celery.NotSupported, match=rf"{option}: a setting of tasks of `late`"):
        app.task(name="add", **{option: True})(add)


class Own(theirs.Task):
    """A class of the service."""


@pytest.mark.parametrize("way", ["task_cls", "Task", None])
def test_the_router_leaves_tasks_of_a_class_of_the_app_to_celery(
    late_db: str, way: str | None
) -> None:
    given: dict[str, Any] = {"task_cls": Own} if way == "task_cls" else {}
    made = theirs.Celery("shop", set_as_current=False, **given)
    if way == "Task":
        made.Task = Own
    task = Router(late.App(late_db), made).task(name="shop.add")(add)
    assert task.refused == (None if way is None else "base")
    assert (task.late_task is None) == (way is not None)


def test_a_child_process_finds_the_tasks_of_the_app_that_a_celery_carries(
    app: celery.Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = app.late_app.task(name="child", process=True)(run)
    monkeypatch.setitem(sys.modules, "shop_of_child", SimpleNamespace(app=app))  # type: ignore[arg-type]
    find = child_main._finder("shop_of_child:app", ())
    sent: Any = SimpleNamespace(attempt=SimpleNamespace(record=SimpleNamespace(name="child")))
    assert find(sent) is handler

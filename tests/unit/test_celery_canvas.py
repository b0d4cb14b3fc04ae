"""What of Celery's canvas is refused where it is called, and how a canvas runs in the caller."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import late
from late import celery
from late.celery import chain, chord, group
from late.celery.signatures import Signature
from late.errors import BatchTooLarge, InvalidTask
from late.payload import codec as codecs
from late.testing import drain


@pytest.fixture
def app(late_db: str) -> celery.Celery:
    app = celery.Celery("shop", late_app=late.App(late_db), late_outside_transaction="open")
    app.task(name="add")(lambda x, y=0: x + y)
    app.task(name="two")(lambda request, exc: None)
    app.task(name="any")(lambda *args: args)
    app.task(name="told", bind=True)(lambda self, id, tag="": seen.append((id, tag)))
    app.task(name="fail")(fail)
    app.task(name="ignore")(ignore)
    seen: list[Any] = []
    app.seen = seen  # type: ignore[attr-defined]
    return app


def fail(*args: Any) -> None:
    raise ValueError("unlucky")


def ignore(*args: Any) -> None:
    raise celery.Ignore


REFUSED = [
    ("link_error of a group", lambda a, e: group(a(1), a(2)).on_error(e.si("x")).delay()),
    ("of a chain with one", lambda a, e: (a(1) | group(a(), a())).on_error(e.si("x")).delay()),
    ("in a group", lambda a, e: group(a(1).on_error(e.si("x")), a(2)).delay()),
    ("the same for all tasks", lambda a, e: (a(1).on_error(e.s()) | a()).delay()),
    ("the same for all", lambda a, e: a(1).set(link=a(), link_error=e.s()).delay()),
    ("one task, the same", lambda a, e: a(1).set(link_error=[e.s(), e.si("x")]).delay()),
    ("one task, such as", lambda a, e: a(1).on_error(e.s() | a()).delay()),
    ("id of its body", lambda a, e: chord([a(1), a(2)], a().on_error(e.s())).delay()),
    ("id of its body", lambda a, e: chord([a(1), a(2)], a()).on_error(e.s()).delay()),
    ("that others follow", lambda a, e: (a(1).set(link=a()) | a()).delay()),
    ("or in a group", lambda a, e: group(a(1).set(link=a()), a(2)).delay()),
    ("ends in a group", lambda a, e: chord([a(1) | group(a(), a(2))], a()).delay()),
    ("at the tasks", lambda a, e: (a(1) | group(a(), a(2), queue="fast")).delay()),
    ("make a group of calls", lambda a, e: a(1).type.starmap([(1, 2)])),
    ("no task_id=", lambda a, e: (a(1).set(task_id="x") | a()).delay()),
]


@pytest.mark.parametrize(("why", "make"), REFUSED)
def test_what_celery_does_otherwise_is_refused(app: celery.Celery, why: str, make: Any) -> None:
    add, told = app.tasks["add"], app.tasks["told"]
    with pytest.raises(celery.NotSupported, match=why):
        make(add.s, told)
    assert drain(app.late_app) == {}


def test_a_link_error_that_celery_could_not_call_is_refused(app: celery.Celery) -> None:
    add, errback = app.tasks["add"], app.tasks["two"]
    with pytest.raises(celery.NotSupported, match=r"\(request, exc, traceback\).*too many"):
        add.apply_async((1,), link_error=errback.s())
    with pytest.raises(celery.NotSupported, match="two: a link_error takes the id"):
        add.s(1).on_error(errback.s()).apply()
    add.apply_async((1,), link_error=errback.si(1, 2))
    add.apply_async((1,), link_error=app.tasks["add"].s(y=1))
    add.apply_async((1,), link_error=app.tasks["any"].s())
    assert drain(app.late_app) == {"done": 3}


def test_a_link_error_with_the_error_runs_in_the_caller_too(app: celery.Celery) -> None:
    fail, seen = app.tasks["fail"], []
    tell = app.task(name="tell")(lambda request, exc, traceback, tag: seen.append((exc, tag)))
    result = fail.s(1).on_error(tell.s("gone")).apply()
    assert result.failed()
    assert seen == [(result.result, "gone")]


def test_what_celery_refuses_too(app: celery.Celery) -> None:
    add = app.tasks["add"].s
    wrong: list[Any] = [
        lambda: group(add(1), add(2)).apply_async(link=add()),
        lambda: chain(),
        lambda: chain(add(1), "add"),
        lambda: group([app.tasks["add"]]),
        lambda: chord([add(1)])(),
        lambda: (add(1, 2, 3) | add()).delay(),
        lambda: add(1) | 2,
        lambda: group(add(1)) | 2,
    ]
    for call in wrong:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(BatchTooLarge):
        chain(*[add(1)] * 101).delay()
    with pytest.raises(InvalidTask):
        (add(1).set(priority=12) | add()).delay()
    assert drain(app.late_app) == {}


def test_a_result_flows_into_json_alone(late_db: str) -> None:
    late_app = late.App(late_db, codec=codecs.MSGPACK)
    app = celery.Celery("shop", late_app=late_app, late_outside_transaction="open")
    add = app.task(name="add")(lambda x, y=0: x + y)
    with pytest.raises(celery.NotSupported, match="JSON alone"):
        (add.s(1) | add.s()).delay()
    (add.s(1) | add.si(2)).delay()
    assert drain(late_app) == {"done": 2}


def test_a_canvas_runs_in_the_caller_up_to_what_fails(app: celery.Celery) -> None:
    add, fail, ignore, told = (app.tasks[name] for name in ("add", "fail", "ignore", "told"))
    done = chain(add.s(1), add.s(2)).set(link=told.s(tag="linked")).apply()
    assert (done.get(), done.parent.get()) == (3, 1)
    stopped = chain(ignore.s(), told.s()).apply()
    assert stopped.state == "IGNORED"
    failed = fail.s().on_error(told.s(tag="failed")).apply()
    assert failed.failed()
    with pytest.raises(ValueError, match="unlucky"):
        chain(fail.s(), told.s()).apply()
    assert app.seen == [(3, "linked"), (failed.id, "failed")]  # type: ignore[attr-defined]
    app.conf.task_always_eager = True
    assert chord([add.s(1), add.s(2)])(app.tasks["any"].s()).get() == ([1, 2],)
    assert group(add.s(1), fail.s()).delay().failed()


def test_a_canvas_is_a_value(app: celery.Celery) -> None:
    add = app.tasks["add"]
    one = add.s(1)
    whole = one | group(add.s(2), add.s(3)) | add.si(4)
    one.set(queue="fast")
    assert repr(whole) == "add(1) | group([add(2), add(3)]) | add(4)"
    assert repr(chord([one], add.s())) == "chord([add(1)], add())"
    assert len(group(one, one)) == 2
    assert whole.tasks[0].tasks[0].options == {}
    assert isinstance(msgspec.structs.replace(one), Signature)

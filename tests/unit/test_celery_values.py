"""Values in the form of Celery's serializer, and the settings of a task of `late.celery`."""

from __future__ import annotations

import gc
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import pytest
from kombu.utils import json as kombu_json

import late
from late import celery
from late.celery.signals import Signal
from late.celery.values import from_json, to_json
from late.cli.app_loader import load_app
from late.errors import InvalidPayload, UnknownTask
from late.model.ids import new_id

VALUES: dict[str, Any] = {
    "datetime": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "date": date(2026, 1, 2),
    "time": time(1, 2, 3),
    "decimal": Decimal("1.10"),
    "uuid": UUID(int=7),
    "bytes": b"ab",
    "base64": b"\xff\x00",
    "deep": [{"a": [None, True, 1.5, "x", b"y"]}],
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_itself(name: str) -> None:
    assert from_json(json.loads(json.dumps(to_json(VALUES[name])))) == VALUES[name]


def test_a_tuple_becomes_a_list_and_other_objects_are_refused() -> None:
    assert from_json(to_json({"a": (1, (2,)), 3: "x"})) == {"a": [1, [2]], "3": "x"}
    with pytest.raises(InvalidPayload, match="object"):
        to_json([object()])
    with pytest.raises(ValueError, match="unsupported type 'pickle'"):
        from_json({"__type__": "pickle", "__value__": ""})


def test_the_form_is_pinned() -> None:
    assert to_json([VALUES["datetime"], VALUES["uuid"], VALUES["bytes"], VALUES["base64"]]) == [
        {"__type__": "datetime", "__value__": "2026-01-02T03:04:05.000006+00:00"},
        {"__type__": "uuid", "__value__": {"hex": "0" * 31 + "7"}},
        {"__type__": "bytes", "__value__": "ab"},
        {"__type__": "base64", "__value__": "/wA="},
    ]
    assert to_json([VALUES["date"], VALUES["time"], VALUES["decimal"]]) == [
        {"__type__": "date", "__value__": "2026-01-02"},
        {"__type__": "time", "__value__": "01:02:03"},
        {"__type__": "decimal", "__value__": "1.10"},
    ]


@pytest.mark.parametrize("name", VALUES)
def test_the_form_is_that_of_kombu(name: str) -> None:
    assert json.loads(kombu_json.dumps(VALUES[name])) == to_json(VALUES[name])
    assert kombu_json.loads(json.dumps(to_json(VALUES[name]))) == VALUES[name]


def made(**settings: Any) -> celery.Celery:
    return celery.Celery("shop", late_app=late.App("sqlite:///none.db"), **settings)


def test_options_that_work_otherwise_are_refused_with_the_way() -> None:
    app = made()
    for rate, why in (("1/d", "is a number"), ("1/h", "below"), (-1, "is a number")):
        with pytest.raises(celery.NotSupported, match=why):
            app.task(rate_limit=rate, name="limited")(lambda: None)
    with pytest.raises(celery.NotSupported, match="no name"):
        app.task(rate_limit="1/s", name="x" * 125)(lambda: None)
    with pytest.raises(celery.NotSupported, match="serializer is json"):
        app.task(serializer="pickle", name="p")(lambda: None)
    task = app.task(name="plain")(lambda: None)
    with pytest.raises(celery.NotSupported, match="link is one task"):
        task.apply_async(link=task)
    with pytest.raises(celery.NotSupported, match="version 7"):
        task.apply_async(task_id=new_id(1))
    with pytest.raises(celery.NoTransaction, match="no transaction is open"):
        task.delay()


def test_a_rate_gives_a_task_a_queue_of_its_own() -> None:
    app = made(task_routes={"mail.*": "mail"})
    app.task(name="mail.send", rate_limit="30/m")(lambda: None)
    app.task(name="plain", rate_limit=10)(lambda: None)
    free = app.task(name="free", rate_limit="0")(lambda: None)
    assert app.late_app.first_rates == {"mail.mail.send": 0.5, "default.plain": 10.0}
    assert app.queue_of(free) == "default"


def test_the_end_of_a_run_is_refused_with_the_way() -> None:
    app = made()
    app.task(name="plain")(lambda: None)
    with pytest.raises(celery.NotSupported, match="soft_time_limit"):
        app.control.revoke("x", terminate=True)
    with pytest.raises(celery.NotSupported, match="result_expires"):
        app.AsyncResult("x").forget()
    with pytest.raises(UnknownTask, match="none"):
        app.signature("none")


def test_a_receiver_is_called_once_for_its_sender_until_it_goes() -> None:
    signal = Signal("told")
    seen: list[Any] = []

    def receiver(sender: Any, **named: Any) -> Any:
        seen.append(sender)
        return len(seen)

    class Holder:
        def method(self, **named: Any) -> None:
            seen.append(self)

    signal.connect(receiver, sender="a")
    assert signal.connect(sender="a")(receiver) is receiver
    signal.connect(lambda **named: seen.append("uid"), weak=False, dispatch_uid="once")
    signal.connect(lambda **named: seen.append("again"), weak=False, dispatch_uid="once")
    assert signal.send("a") == [(receiver, 1), (ANY, None)]
    signal.send("b")
    assert seen == ["a", "uid", "uid"]
    assert signal.disconnect(dispatch_uid="once")
    assert not signal.disconnect(receiver)
    seen.clear()

    holder = Holder()
    signal.connect(holder.method)
    signal.connect(holder.method)
    signal.send("b")
    assert seen == [holder]
    seen.clear()
    del receiver, holder
    gc.collect()
    assert signal.send("a") == []


def test_routes_and_limits_reach_the_task() -> None:
    app = made(task_routes={"mail.*": {"queue": "mail"}}, task_time_limit=20)
    app.task(name="mail.send", soft_time_limit=5, max_retries=None)(lambda: None)
    found = app.late_app.tasks["mail.send"]
    assert (found.queue, found.timeout_s, found.soft_timeout_s) == ("mail", 20, 5)
    assert found.retry.max_attempts == 1_000
    app.task(name="own", retry_kwargs={"max_retries": 7})(lambda: None)
    assert app.late_app.tasks["own"].retry.max_attempts == 8


def test_eager_calls_run_here_with_their_retries() -> None:
    app = made(task_always_eager=True, late_outside_transaction="open")
    seen: list[int] = []

    @app.task(bind=True, max_retries=2)
    def flaky(self: celery.Task, most: int) -> str:
        seen.append(self.request.retries)
        if self.request.retries < most:
            self.retry(exc=ValueError("not yet"))
        return "done"

    assert flaky.delay(2).get() == "done"
    assert seen == [0, 1, 2]
    result = flaky.delay(3)
    assert result.failed()
    with pytest.raises(ValueError, match="not yet"):
        result.get()
    with pytest.raises(ValueError, match="not yet"):
        flaky(1)


def test_the_backoff_doubles_up_to_its_bound() -> None:
    task = made().task(name="b", retry_backoff=3, retry_backoff_max=20, retry_jitter=False)(
        lambda: None
    )
    assert [task.backoff(retries) for retries in range(4)] == [3, 6, 12, 20]


def test_a_shared_task_belongs_to_the_apps_of_before_and_of_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("late.celery.app._shared", [])
    monkeypatch.setattr("late.celery.app._apps", [])
    before = made()
    task = celery.shared_task(name="shared.one")(lambda: None)
    later = made()
    assert "shared.one" in before.late_app.tasks
    assert later.tasks["shared.one"] is task
    assert task.app is later


def test_a_worker_takes_the_app_by_the_name_of_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shim_tasks.py").write_text(
        "import late\nfrom late.celery import Celery\n"
        "app = Celery('shop', late_app=late.App('sqlite:///none.db'))\n"
        "@app.task\ndef add(x, y):\n    return x + y\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load_app("shim_tasks:app")
    assert isinstance(found, late.App)
    assert list(found.tasks) == ["shim_tasks.add"]

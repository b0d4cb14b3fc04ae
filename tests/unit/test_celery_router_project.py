"""A router in a project of Celery: its settings, its modules, its beat. Celery is the real one."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import celery.result
import celery.signals
import pytest

import late
from late.celery import signals
from late.celery.beat import leave_to_late
from late.celery.router import Router
from late.celery.router.attempts import DUE, SAMPLE_EVERY_S
from late.cli.app_loader import load_app
from late.control import Control
from late.control.status.celery_shares import read, started_queue
from late.errors import ConfigError
from late.outbox import connect
from late.testing import drain
from tests.unit.cli_kit import Cli

MAIN = """
from celery import Celery
import late
from late.celery.router import Router
from late.celery.router.attempts import DUE, SAMPLE_EVERY_S

celery_app = Celery("shop", broker="memory://")
celery_app.conf.task_routes = {"shop.tasks.*": {"queue": "fast"}}
celery_app.conf.beat_schedule = {"often": {"task": "shop.tasks.send", "schedule": 30.0}}
celery_app.conf.timezone = "Europe/Berlin"
celery_app.autodiscover_tasks(["shop"])
router = Router(late.App("URL"), celery_app)
"""
TASKS = """
from shop.celery import router

@router.task
def send(n=0): ...
"""


def job(n: int = 0) -> None:
    """Do it."""


@pytest.fixture
def shop(late_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project in the current folder."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "celery.py").write_text(MAIN.replace("URL", late_db))
    (folder / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [each for each in sys.modules if each.partition(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.fixture
def app() -> Any:
    return celery.Celery("shop", broker="memory://", set_as_current=False)


def test_a_task_on_late_has_the_settings_of_celerys_app(late_db: str, app: Any) -> None:
    app.conf.update(
        task_soft_time_limit=5,
        task_time_limit=9,
        task_routes={"shop.slow": {"queue": "slow"}},
        task_default_queue="main",
        timezone="Europe/Berlin",
    )
    router = Router(late.App(late_db), app, task_time_limit=20)
    slow = router.task(name="shop.slow")(job)
    router.task(name="shop.send")(job)
    found = router.late_app.tasks
    assert {found[name].soft_timeout_s for name in ("shop.slow", "shop.send")} == {5.0}
    assert found["shop.slow"].timeout_s == 20.0
    assert [found[name].queue for name in ("shop.slow", "shop.send")] == ["slow", "main"]
    assert router.late.conf.timezone == "Europe/Berlin"
    app.conf.task_routes = None
    router.task(name="shop.third")(job)
    assert router.late.queue_of(slow.late_task) == "main"


def test_a_setting_that_late_cannot_have_is_logged_once(
    late_db: str, app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.task_routes = (lambda name, *_, **__: None,)
    router = Router(late.App(late_db), app)
    for name in ("shop.one", "shop.two"):
        router.task(name=name)(job)
    (told,) = [r.getMessage() for r in caplog.records if "without an effect on late" in r.msg]
    assert "task_routes" in told
    assert router.late_app.tasks["shop.one"].queue == "default"


def test_a_worker_imports_the_modules_of_celerys_app(shop: Path) -> None:
    assert "shop.tasks.send" in load_app("shop.celery:router").tasks


def test_a_check_warns_of_an_app_without_tasks(cli: Cli, shop: Path, late_db: str) -> None:
    (shop / "empty.py").write_text(f"import late\napp = late.App({late_db!r})\n")
    assert "shop.empty:app has no tasks" in cli.fine("check", "shop.empty:app").err
    assert "has no tasks" not in cli.fine("check", "shop.celery:router").err


def test_a_routed_task_looks_like_its_function_and_keeps_any_name(late_db: str, app: Any) -> None:
    router = Router(late.App(late_db), app)
    names = ["my task", "n" * 129, "n" * 130]
    made = [router.task(name=name)(job) for name in names]
    for each in made:
        each.delay(1)
    assert drain(router.late_app) == {"done": 3}
    with Control(late_db) as control:
        found = read(control, since_us=0, group="default")
    assert [each.unsupported for each in found] == [{"name": 1}] * 3
    assert found[0].task.startswith("my-task-")
    assert (made[0].__name__, made[0].__doc__, made[0].__wrapped__) == ("job", "Do it.", job)


def test_a_name_that_is_used_twice_names_the_function(late_db: str, app: Any) -> None:
    router = Router(late.App(late_db), app)
    router.late.task(name="shop.send")(job)
    with pytest.raises(ConfigError, match=r"test_celery_router_project\.job already"):
        router.task(name="shop.send")(job)


def test_a_queue_that_late_cannot_have_keeps_the_task_on_celery(late_db: str, app: Any) -> None:
    router = Router(late.App(late_db), app)
    assert router.task(name="shop.send", queue="high priority")(job).refused == "queue"
    assert "shop.send" not in router.late_app.tasks


def test_an_id_and_a_name_lead_to_their_side(late_db: str, app: Any) -> None:
    router = Router(late.App(late_db), app)
    send = router.task(name="shop.send")(job)
    on_celery = router.send_task("shop.send", (1,))
    with Control(late_db) as control:
        control.queues.change("queue", "celery:shop.send", {"late_share": 1.0})
    router.shares._read_at = None
    on_late = router.send_task("shop.send", kwargs={"n": 1})
    assert isinstance(send.AsyncResult(on_celery.id), celery.result.AsyncResult)
    assert isinstance(send.AsyncResult(on_late.id), late.celery.AsyncResult)
    assert router.AsyncResult(on_late.id).id == on_late.id


def test_receivers_of_celerys_signals_hear_of_tasks_on_late(late_db: str, app: Any) -> None:
    shim = late.celery.Celery("shop", late_app=late.App(late_db), late_outside_transaction="open")
    etas: list[Any] = []
    told: list[tuple[str, str]] = []

    @shim.task(bind=True, name="shop.send")
    def send(self: Any, fails: bool) -> None:
        etas.append(self.request.eta)
        if fails:
            raise ValueError

    def hear(signal: Any, sender: Any, **_: Any) -> None:
        told.append((signal.name, sender.name))

    theirs = [getattr(celery.signals, name) for name in ("task_prerun", "task_failure")]
    for each in theirs:
        each.connect(hear)
    send.delay(True)
    send.apply_async((False,), eta=datetime.now(UTC).replace(tzinfo=None))
    drain(shim.late_app)
    for each in theirs:
        each.disconnect(hear)
    assert sorted(told) == [
        ("task_failure", "shop.send"), ("task_prerun", "shop.send"), ("task_prerun", "shop.send"),
    ]  # fmt: skip
    assert sorted(eta is None for eta in etas) == [False, True]


def test_a_call_beside_an_open_transaction_on_sqlite_says_what_to_do(
    late_db: str, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.outbox.write_turns.BUSY_TIMEOUT_S", 0.0)
    send = Router(late.App(late_db), app).task(name="shop.send")(job)
    with connect(late_db), pytest.raises(sqlite3.OperationalError) as caught:
        send.delay(1)
    assert "with late.celery.transaction(tx)" in caught.value.__notes__[0]


def test_beat_takes_a_router_and_its_routes(cli: Cli, shop: Path) -> None:
    """Celery's own app and the router of another module, as a project has them."""
    (shop / "side.py").write_text("from shop.celery import router\n")
    told = cli.fine("celery", "beat", "shop.celery:celery_app", "--into", "shop.side:router",
                    "--apply", "--json").json  # fmt: skip
    assert told["written"] == ["often"]
    assert told["entries"][0]["zone"] == "Europe/Berlin"
    router = sys.modules["shop.celery"].router
    assert router.late_app.schedules[0].queue == "fast"
    running = {"often": SimpleNamespace(task="shop.tasks.send"), "other": SimpleNamespace(task="t")}
    service = SimpleNamespace(scheduler=SimpleNamespace(schedule=running))
    assert leave_to_late(service, router) == ["often"]
    router.late_app.schedules.clear()  # A command line is a process of its own.
    again = cli.fine("celery", "beat", "shop.celery:router", "--json").json
    assert [each["verdict"] for each in again["entries"]] == ["late"]


def test_a_result_without_an_app_is_of_the_newest_one(late_db: str) -> None:
    shim = late.celery.Celery("shop", late_app=late.App(late_db), late_outside_transaction="open")
    send = shim.task(name="shop.send")(job)
    assert late.celery.AsyncResult(send.delay().id).state == "PENDING"
    assert late.celery.AsyncResult("any").app is shim


def test_signals_in_the_place_of_celerys_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "celery.signals", signals)
    told: list[object] = []

    def hear(sender: object, **_: Any) -> None:
        told.append(sender)

    signals.task_success.connect(hear)
    signals.task_success.send("me", result=1)
    signals.task_success.disconnect(hear)
    assert told == ["me"]


def test_failures_on_celery_are_counted_beside_those_of_late(
    late_db: str, app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(late.App(late_db), app)

    @router.task(name="shop.send", bind=True, max_retries=1)
    def send(self: Any, n: int) -> None:
        raise ValueError(n)

    long = router.task(name="n" * 130)(job)
    for task in (send, long):
        task.delay(1)
        sender = app.tasks[task.name]
        celery.signals.task_failure.send(sender=sender, exception=ValueError(1))
        celery.signals.task_retry.send(sender=sender, reason=ValueError(1))
    celery.signals.task_failure.send(sender=app.tasks["celery.backend_cleanup"])
    send.apply((1,))  # In the caller: on no side.
    with Control(late_db) as control:
        control.queues.change("queue", "celery:shop.send", {"late_share": 1.0})
    router.shares._read_at = None  # type: ignore[union-attr]
    send.delay(2)
    assert drain(router.late_app) == {"done": 6, "dead": 1}
    with Control(late_db) as control:
        found = read(control, since_us=0, group="default")
    assert [(each.celery.calls, each.celery.errors) for each in found] == [(1, 2), (1, 2)]
    sent = found[1]
    assert (sent.task, sent.late.errors, sent.unsupported) == ("shop.send", 1, {})
    Path(late_db.removeprefix("sqlite:///")).unlink()
    celery.signals.task_failure.send(sender=app.tasks["shop.send"], exception=ValueError(1))
    assert "an attempt of shop.send on Celery is not counted" in caplog.text


def test_celerys_workers_tell_of_some_calls_how_late_they_start(
    late_db: str, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = Router(late.App(late_db), app)
    router.task(name="shop.send")(job)
    clock = SimpleNamespace(now=1_000.0)
    for name in ("_now", "_monotonic"):
        monkeypatch.setattr(router._attempts, name, lambda: clock.now)
    sender = app.tasks["shop.send"]

    def start(late_s: float, **request: Any) -> None:
        due_us = round((clock.now - late_s) * 1_000_000)
        sender.push_request(**{DUE: due_us, **request})
        celery.signals.task_prerun.send(sender=sender)
        sender.pop_request()

    router.tasks["shop.send"].delay(1)
    start(0.050)
    start(900.0)  # The process has told of a call just now.
    for _ in range(9):
        clock.now += SAMPLE_EVERY_S
        start(7.5)
    clock.now += SAMPLE_EVERY_S
    start(900.0, retries=1)  # It had its start before.
    start(900.0, is_eager=True)  # In the caller.
    sender.push_request()
    celery.signals.task_prerun.send(sender=sender)  # It was not the router that sent it.
    sender.pop_request()
    assert drain(router.late_app) == {"done": 11}
    with Control(late_db) as control:
        (found,) = read(control, since_us=0, group="default")
    assert (found.celery.calls, found.celery.done, found.celery.errors) == (1, 1, 0)
    assert found.celery.late_p50_s == pytest.approx(8.192, rel=1 / 16)
    assert found.unsupported == {}


@pytest.mark.parametrize(
    ("late_s", "queue"),
    [(-1.0, 0), (0.0, 0), (0.001, 1), (0.9, 10), (1.024, 11), (3_600.0, 22)],
)
def test_a_lateness_has_the_queue_of_the_next_power_of_two(late_s: float, queue: int) -> None:
    assert started_queue(late_s) == f"celery.started.{queue}"


def test_a_message_says_when_its_call_was_due(late_db: str, app: Any) -> None:
    router = Router(late.App(late_db), app)
    send = router.task(name="shop.send")(job)
    sent: list[dict[str, Any]] = []

    def publish(args: Any, kwargs: Any, **options: Any) -> None:
        sent.append(options)

    app.tasks["shop.send"].apply_async = publish
    eta = datetime(2999, 1, 1, tzinfo=UTC)
    send.apply_async((1,), headers={"trace": "t"})
    send.apply_async((2,), eta=eta)
    send.apply_async((3,), eta=datetime(2001, 1, 1, tzinfo=UTC))
    before_us = datetime.now(UTC).timestamp() * 1_000_000
    assert drain(router.late_app) == {"done": 3}
    due = [options["headers"][DUE] for options in sent]
    assert sorted(due)[-1] == eta.timestamp() * 1_000_000
    assert all(before_us - 60_000_000 < each <= before_us for each in sorted(due)[:2])
    # Three calls without an order: any of them may be the first that is handed over.
    assert [options["headers"].get("trace") for options in sent].count("t") == 1

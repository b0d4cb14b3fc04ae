"""A router in a project of Celery: its settings, its modules, its beat. Celery is the real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery as celerys
import pytest
from celery import _state

import late
from late.celery.router import Router
from late.cli.app_loader import load_app
from tests.unit.cli_kit import Cli

MAIN = """
from celery import Celery
import late
from late.celery.router import Router

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


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery gives the tasks of one app to every other one; those of a test end with it."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))


def job(n: int = 0) -> None: ...


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
    return celerys.Celery("shop", broker="memory://", set_as_current=False)


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
    assert router.late.queue_of(slow._late_task) == "main"


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

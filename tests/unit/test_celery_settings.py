"""Settings of Celery: each has its meaning here, or is named once with what is here instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import late
from late import celery
from late.celery.settings import DEFAULTS
from late.cli.app_loader import load_app
from late.errors import ConfigError, UnknownTask


def made(**settings: Any) -> celery.Celery:
    return celery.Celery("shop", late_app=late.App("sqlite:///none.db"), **settings)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages, which are forgotten again."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    # Tasks of `shared_task` stay for the apps of later tests otherwise.
    monkeypatch.setattr("late.celery.app._shared", [])
    monkeypatch.setattr("late.celery.app._apps", [])
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_update_takes_what_has_a_meaning_and_names_the_rest_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = made(broker="redis://:hidden@db", backend="rpc://")
    app.conf.update({"task_always_eager": True}, task_default_queue="fast", worker_concurrency=4)
    app.conf.update(broker_url="redis://:hidden@other", colour="red")
    app.conf.CELERYD_CONCURRENCY = 8
    app.conf["task_ignore_result"] = True
    assert app.conf.task_always_eager
    assert app.conf["CELERY_DEFAULT_QUEUE"] == app.conf.get("task_default_queue") == "fast"
    assert app.conf.task_ignore_result
    assert app.conf.worker_concurrency == 8
    assert app.conf.broker_url == "redis://:hidden@other"
    first, second, third = [record.getMessage() for record in caplog.records]
    assert "broker_url (there is no broker" in first
    assert "result_backend (results are rows" in first
    assert "worker_concurrency (LATE_CONCURRENCY" in second
    assert "broker_url" not in second + third
    assert "colour (not known)" in third
    assert "late celery scan" in third
    assert "hidden" not in caplog.text + repr(app.conf)


def test_what_holds_in_any_case_is_named_where_it_is_asked_not_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = made(enable_utc=True, task_acks_late=True, task_serializer="json",
               accept_content=["json"])  # fmt: skip
    assert caplog.records == []
    app.conf.update(
        enable_utc=False, task_acks_late=False, accept_content=["yaml"], task_serializer="pickle"
    )
    assert "task_serializer (JSON alone)" in caplog.text
    assert "accept_content (JSON alone), enable_utc (always so), task_acks_late" in caplog.text


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"late_outside_transaciton": "open"}, ConfigError, "no setting late_outside_transaciton"),
        ({"task_routes": "shop.route"}, celery.NotSupported, "a function cannot route"),
        ({"task_routes": {"a": {"routing_key": "b"}}}, celery.NotSupported, "'a' names no queue"),
        ({"result_expires": None}, celery.NotSupported, "say for how long"),
    ],
)
def test_a_wrong_setting_is_refused_and_none_is_taken(
    given: dict[str, Any], error: type[Exception], words: str
) -> None:
    app = made()
    with pytest.raises(error, match=words):
        app.conf.update({"task_always_eager": True, **given})
    assert {name: app.conf[name] for name in DEFAULTS} == DEFAULTS


def test_values_of_celery_are_converted() -> None:
    app = made(result_expires=timedelta(hours=1), timezone=ZoneInfo("Europe/Oslo"), imports="a")
    conf = app.conf
    assert (conf.result_expires, conf.timezone, conf.imports) == (3_600.0, "Europe/Oslo", ("a",))


class Named(SimpleNamespace):
    """A queue as kombu has it: an object with a name."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)


@pytest.mark.parametrize(
    "routes",
    [
        {"mail.*": {"queue": "mail"}, re.compile(r"(video|image)[.].+"): "media"},
        [("mail.*", {"queue": "mail"}), (re.compile(r"(video|image)[.].+"), "media")],
        ({"mail.*": "mail"}, {re.compile(r"(video|image)[.].+"): {"queue": Named("media")}}),
        ([("mail.*", "mail"), (re.compile(r"(video|image)[.].+"), "media")],),
    ],
)  # fmt: skip
def test_routes_of_every_shape_reach_the_task(routes: Any) -> None:
    app = made(task_routes=routes)
    for name in ("mail.send", "image.cut", "other"):
        app.task(name=name)(lambda: None)
    queues = {name: task.policy.queue for name, task in app.late_app.tasks.items()}
    assert queues == {"mail.send": "mail", "image.cut": "media", "other": "default"}


def test_a_setting_that_comes_after_its_tasks_is_named(caplog: pytest.LogCaptureFixture) -> None:
    app = made()
    app.task(name="early")(lambda: None)
    app.conf.update(task_default_queue="fast", timezone="UTC", task_routes=None)
    assert "task_default_queue: set after 1 tasks were registered" in caplog.text
    assert "task_routes" not in caplog.text


def test_settings_come_from_a_module_an_object_and_a_mapping(project: Path) -> None:
    (project / "celeryconfig.py").write_text(
        "import os\n"
        "broker_url = 'redis://'\n"
        "task_time_limit = 20\n"
        "CELERY_DEFAULT_QUEUE = 'old'\n"
        "late_time_limit = 60.0\n"
        "class Config:\n    task_default_queue = 'inner'\n"
    )
    app = made(config_source="celeryconfig")
    conf = app.conf
    assert (conf.task_time_limit, conf.late_time_limit) == (20, 60.0)
    assert (conf.task_default_queue, conf.get("os")) == ("old", None)
    app.config_from_object("celeryconfig:Config")
    assert app.conf.task_default_queue == "inner"
    app.conf.task_default_queue = "other"
    app.config_from_object("celeryconfig.Config")
    assert app.conf.task_default_queue == "inner"
    app.config_from_object({"task_default_queue": "mapped"})
    assert app.conf.task_default_queue == "mapped"
    app.config_from_object("no.such.module", silent=True)
    with pytest.raises(ModuleNotFoundError):
        app.config_from_object("no.such.module")
    with pytest.raises(ModuleNotFoundError):
        app.config_from_object("celeryconfig.Nothing")


def test_a_namespace_takes_its_names_alone_and_all_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = made()
    settings = SimpleNamespace(
        CELERY_TASK_ALWAYS_EAGER=True, CELERY_COLOUR="red", DEBUG=True, TIMEZONE="no",
        task_default_queue="no", CELERY_LATE_OUTSIDE_TRANSACTION="open",
    )  # fmt: skip
    app.config_from_object(settings, namespace="CELERY")
    assert app.conf.task_always_eager
    assert app.conf.late_outside_transaction == "open"
    assert app.conf.task_default_queue == "default"
    assert "colour (not known)" in caplog.text
    assert "debug" not in caplog.text


def test_a_worker_imports_the_modules_that_are_to_be_discovered(project: Path) -> None:
    (project / "shop").mkdir()
    for name, text in {
        "__init__": "",
        "tasks": "from late.celery import shared_task\n@shared_task\ndef pay(): ...\n",
        "more": "from shop.main import app\n@app.task\ndef mail(): ...\n",
        "main": (
            "import late\nfrom late.celery import Celery\n"
            "app = Celery('shop', late_app=late.App('sqlite:///none.db'), include=['shop.more'])\n"
            "app.autodiscover_tasks(['shop', 'empty'])\n"
        ),
    }.items():
        (project / "shop" / f"{name}.py").write_text(text)
    (project / "empty").mkdir()
    (project / "empty" / "__init__.py").touch()
    assert set(load_app("shop.main").tasks) == {"shop.tasks.pay", "shop.more.mail"}


def test_a_router_stands_for_its_app_too(project: Path) -> None:
    (project / "routed.py").write_text(
        "import late\nfrom celery import Celery\nfrom late.celery.router import Router\n"
        "app = Router(late.App('sqlite:///none.db'), Celery('shop', broker='memory://'))\n"
        "@app.task(name='pay')\ndef pay(): ...\n"
    )
    assert "pay" in load_app("routed").tasks


def test_a_call_by_name_looks_for_its_module_first(project: Path) -> None:
    (project / "jobs.py").write_text(
        "from late.celery import shared_task\n@shared_task\ndef run(): ...\n"
    )
    app = made()
    app.autodiscover_tasks(lambda: ["jobs"], related_name=None)
    with pytest.raises(UnknownTask):
        made().signature("jobs.run")
    assert app.signature("jobs.run").task == "jobs.run"


def test_what_is_missing_in_a_discovered_module_is_told(project: Path) -> None:
    (project / "shop").mkdir()
    (project / "shop" / "__init__.py").touch()
    (project / "shop" / "tasks.py").write_text("import no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        made().autodiscover_tasks(["shop"], force=True)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        made().autodiscover_tasks(["no_such_package"], force=True)


def test_an_app_that_is_closed_takes_no_more_shared_tasks(project: Path) -> None:
    with made() as app:
        celery.shared_task(name="before")(lambda: None)
    app.close()
    celery.shared_task(name="after")(lambda: None)
    assert list(app.tasks) == ["before"]

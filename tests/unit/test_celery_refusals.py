"""The verdicts of the scan agree with `late.celery`: what it refuses or has not is never `same`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import celery as theirs
import pytest

import late
from late import celery
from late.celery.request import Request
from late.celery.scan.features import TABLE, feature
from late.celery.scan.twins import IMPORTS, MODULES
from tests.unit.test_celery_scan import scanned

HEAD = "from celery import Celery, chain, group, shared_task\napp = Celery('x')\n"
BODY = "@app.task(bind=True)\ndef f(self, x):\n    "
SOURCE = Path(celery.__file__).parent

SEEN: dict[str, tuple[str, ...]] = {
    "app.build": (
        "@app.task\nasync def f(): ...",
        "@app.task(pydantic=True)\ndef f(): ...",
    ),
    "app._add": ("@app.task(serializer='pickle')\ndef f(): ...",),
    "bases.class_of": (
        "from celery_once import QueueOnce\n@app.task(base=QueueOnce, once={})\ndef f(): ...",
        "from celery_once import QueueOnce\nclass Own(QueueOnce): ...\n"
        "@app.task(base=Own)\ndef f(): ...",
        "from celery_once import QueueOnce\nother = Celery('y', task_cls=QueueOnce)",
    ),
    "control.revoke": (
        "app.control.revoke('x', terminate=True)",
        "app.AsyncResult('x').revoke(terminate=True, signal='SIGKILL')",
        "app.control.revoke('x', terminate=now)",
    ),
    "result.forget": (
        "app.AsyncResult('x').forget()",
        "found = app.send_task('f')\nfound.forget()",
        BODY + "f.delay(1).forget()",
    ),
    "task._refuse": (
        BODY + "f.map([1])", BODY + "f.starmap([1])", BODY + "self.chunks([1], 2)",
    ),
    "task.late_options": (BODY + "...\nf.apply_async((1,), shadow='x')",),
    "task.retry": (
        BODY + "raise self.retry(args=(x + 1,))",
        BODY + "raise self.retry((x + 1,), {}, exc=None)",
        BODY + "raise self.retry(kwargs={'x': 2})",
        BODY + "raise f.retry(queue='slow')",
        BODY + "raise self.retry(**options)",
        BODY + "raise self.retry(max_retries=4)",
        BODY + "raise self.retry(max_retries=None)",
        BODY + "raise self.retry(max_retries=most)",
        "from celery import current_task\n@app.task\ndef f(): current_task.retry(priority=1)",
    ),
    "settings._value": ("app.conf.result_expires = 0",),
    "settings._routes": ("app.conf.task_routes = [route]",),
    "rates.rate_of": ("@app.task(rate_limit='1/d')\ndef f(): ...",),
    "rates.queue_with": ("@app.task(rate_limit='1/s')\ndef f(): ...",),
    "canvas/steps.add_callbacks": (
        BODY + "...\ngroup(f.s(1)).on_error(f.s())",
        BODY + "...\ngroup([]).apply_async(link=f.s())",
    ),
    "canvas/draft._call": (
        BODY + "...\nchain(f.s(1), f.s()).apply_async(task_id='a')",
        BODY + "...\ngroup(f.s(1)).set(task_id='a')",
    ),
}  # fmt: skip
"""Where `NotSupported` is raised -> sources that get there; the scan has to see each."""
UNSEEN = {
    "ids.key_of": "an id of a certain form",
    "transactions.write": "an async transaction",
    "signatures.steps": "options of a chain within another: the note of `chain`",
    "canvas/steps.linked": "the note of `link` says it",
    "canvas/steps.check_nested": "the form of a canvas that is put together while it runs",
    "canvas/steps.errback_of": "the note of `link_error` says it",
    "canvas/steps.takes_error": "the note of `link_error` says it",
    "canvas/draft.__init__": "the database",
    "beat.cron_of": "`late celery beat` tells of each entry",
    "beat._entry": "`late celery beat` tells of each entry",
    "beat._rule": "`late celery beat` tells of each entry",
    "beat._declared": "`late celery beat` tells of each entry",
}
"""Where it depends on what only a process knows -> what."""


def raised() -> Iterator[str]:
    """Yield the functions that raise `NotSupported`."""
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).with_suffix("").as_posix()
        if name.startswith(("router/", "scan/")):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                for each in ast.walk(function):
                    if isinstance(each, ast.Raise) and "NotSupported(" in ast.unparse(each):
                        yield f"{name}.{function.name}"


def test_each_refusal_is_seen_by_the_scan_or_has_a_reason() -> None:
    assert set(raised()) == SEEN.keys() | UNSEEN.keys()


@pytest.mark.parametrize("text", [text for texts in SEEN.values() for text in texts])
def test_a_refusal_is_no_task_of_the_verdict_same(text: str) -> None:
    found = scanned(HEAD + text)
    own = [each.feature for each in found.missing() if each.feature != "import.celery_once"]
    assert own, text
    assert found.worst != "same"
    counts = found.counts()
    assert not found.tasks or text.startswith(BODY + "...") or not counts["same"], counts


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("@app.task\nasync def f(): ...", {"shape.async def"}),
        ("app.start()", {"app.start"}),
        ("@app.on_after_configure.connect\ndef f(**kwargs): ...", {"app.on_after_configure"}),
        (BODY + "self.app.amqp", {"app.amqp"}),
        ("self.app.start()", set()),
        ("from shop.celery import app as shop_app\nshop_app.worker_main()", {"app.worker_main"}),
        ("other = Celery('y', loader='x', strict_typing=True, **more)", {"app.loader", "app.**"}),
        ("app.send_task('f').collect()", {"result.collect"}),
        ("found = app.AsyncResult('x')\nfound.children", {"result.children"}),
        ("tree.children", set()),
        ("app.AsyncResult('x').traceback", set()),
    ],
)
def test_names_of_apps_and_results_are_told(text: str, features: set[str]) -> None:
    assert {each.feature for each in scanned(HEAD + text).missing()} == features


@pytest.mark.parametrize(
    "text",
    [
        BODY + "raise self.retry(exc=None, countdown=3, max_retries=3)",
        BODY + "raise self.retry(args=self.request.args, kwargs=None)",
        BODY + "raise self.retry(max_retries=self.max_retries)",
        "@app.task(bind=True, max_retries=None)\ndef f(self): raise self.retry(max_retries=9)",
        BODY + "app.control.revoke('x', terminate=False)",
        BODY + "cache.forget()",
        BODY + "other.retry(queue='x')",
        "class Base(app.Task): ...\n@app.task(base=Base)\ndef f(): ...",
        "def make():\n    class Base(app.Task): ...\n    @app.task(base=Base)\n    def f(): ...",
        "from celery import Task\n@shared_task(base=Task)\ndef f(): ...",
    ],
)
def test_what_works_is_not_told(text: str) -> None:
    missing = {each.feature for each in scanned(HEAD + text).missing()}
    assert not missing - {"shape.nested"}


def test_a_class_with_its_own_apply_async_is_told() -> None:
    text = "class Base(app.Task):\n    def apply_async(self, *a, **k): ...\n"
    found = scanned(HEAD + text + "@app.task(base=Base)\ndef f(): ...")
    assert [use.feature for use in found.silent()] == ["option.apply_async"]


def public(found: Any) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]


@pytest.fixture
def both() -> Iterator[tuple[Any, Any]]:
    with celery.Celery("x", late_app=late.App("sqlite:///x.db")) as ours:
        yield theirs.Celery("x", set_as_current=False), ours


def test_names_of_an_app_that_are_not_here_are_not_the_same(both: tuple[Any, Any]) -> None:
    keywords = ("config_source", "namespace")  # Of `Celery(...)`.
    names = [*public(both[0]), *TABLE["app"]]
    wrong = [n for n in names if not hasattr(both[1], n) and is_same("app", n)]
    assert not set(wrong) - set(keywords)
    told = [n for n in public(both[0]) if n not in TABLE["app"] and hasattr(both[1], n)]
    assert not told


def run() -> None: ...


def test_names_of_a_task_that_are_not_here_are_not_the_same(both: tuple[Any, Any]) -> None:
    task, own = (app.task(name="f")(run) for app in both)
    assert not [n for n in public(task) if not hasattr(own, n) and is_same("self", n)]
    context = theirs.app.task.Context()
    wrong = [n for n in public(context) if not hasattr(Request(), n)]
    assert not [name for name in wrong if is_same("self", f"request.{name}")]
    same = [n for n, found in TABLE["self"].items() if found.verdict == "same"]
    for name in same:
        value: Any = own
        for part in name.split("."):
            value = getattr(value, part)


def is_same(kind: str, name: str) -> bool:
    return feature(kind, name).verdict == "same"


def test_signals_and_exceptions_of_the_verdict_same_are_here() -> None:
    for kind in ("signal", "exception"):
        module = import_module(f"late.celery.{kind}s")
        for name, found in TABLE[kind].items():
            assert (found.verdict == "same") == hasattr(module, name), name


def test_each_import_with_a_twin_can_be_made_there() -> None:
    for name, found in IMPORTS.items():
        if found.verdict == "same" and name not in MODULES:
            module = import_module(found.note.removeprefix("from `").removesuffix("`"))
            assert hasattr(module, name.rpartition(".")[2]), name
    for ours in MODULES.values():
        import_module(ours)


def test_each_row_of_the_page_of_imports_can_be_imported() -> None:
    page = (SOURCE.parents[1] / "docs" / "celery-tasks.md").read_text()
    rows = re.findall(r"^\| `(from celery\S* import [^`]*)`.* \| `(from [^`]*)` \|$", page, re.M)
    assert len(rows) >= 10
    for old, new in rows:
        assert not scanned(HEAD + old).missing()
        assert old.partition(" import ")[2] == new.partition(" import ")[2]
        exec(new, {})


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("from celery import current_app, current_task, states, uuid, signature", []),
        ("from celery.utils.log import get_task_logger\nimport celery.states", []),
        ("from celery.result import AsyncResult, GroupResult\nfrom celery.canvas import chain", []),
        ("from celery.signals import nothing\nfrom celery.exceptions import Nothing", []),
        ("from celery.utils.time import rate", ["celery.utils.time.rate"]),
        ("from celery import bootsteps", ["celery.bootsteps"]),
        ("from celery.contrib.testing.worker import start_worker",
         ["celery.contrib.testing.worker.start_worker"]),
        ("from celery.result import ResultSet", ["celery.result.ResultSet"]),
        ("from celery.app.log import TaskFormatter", ["celery.app.log.TaskFormatter"]),
        ("from kombu import Queue", ["kombu.Queue"]),
        ("from late.celery import nothing\nfrom celerity import nothing", []),
    ],
)  # fmt: skip
def test_imports_without_a_twin_are_told(text: str, missing: list[str]) -> None:
    found = scanned(HEAD + text)
    assert [f"import.{name}" for name in missing] == [each.feature for each in found.missing()]
    assert all(each.note for each in found.missing())


def test_a_module_of_the_project_by_the_name_of_celery_is_its_own() -> None:
    text = "import celery_app\nfrom celery import nothing\nfrom late.celery import shared_task"
    assert not scanned(text, celery="nothing = 1").missing()

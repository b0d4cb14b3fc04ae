"""What the scan of a Celery project finds: tasks, what they use, calls, settings."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.celery.scan.features import TABLE, feature
from late.celery.scan.project import Module, Project
from late.celery.scan.report import Scan, scan, scan_project
from scripts import celery_doc

TASKS = """
from celery import Celery, shared_task as job, chain
from celery.exceptions import Ignore, SoftTimeLimitExceeded
from celery.signals import task_prerun

app = Celery("shop", broker="redis://localhost")
app.conf.task_always_eager = True


@job
def plain(order): ...


@app.task(bind=True, name="shop.send", max_retries=3, rate_limit="10/m")
def send(self, order):
    try:
        print(self.request.id, self.request.retries, self.request.delivery_info["routing_key"])
    except SoftTimeLimitExceeded:
        raise Ignore()
    except OSError as error:
        raise self.retry(exc=error, countdown=5)


@task_prerun.connect
def before(**kwargs): ...


def place():
    plain.delay(1)
    send.apply_async((1,), countdown=5, link=plain.s())
    chain(plain.s(1), send.s())()
    app.send_task("shop.send", args=[1], queue="mail")
"""


def scanned(text: str, **others: str) -> Scan:
    modules = [
        Module(f"{name}.py", name, ast.parse(textwrap.dedent(source)), package=False)
        for name, source in {"tasks": text, **others}.items()
    ]
    return scan_project(Project(modules))


def features(found: Scan, name: str) -> set[str]:
    [task] = [task for task in found.tasks if task.name == name]
    return {use.feature for use in task.uses}


def test_tasks_are_found_with_what_they_use() -> None:
    found = scanned(TASKS)
    lines = [(task.name, task.line) for task in found.tasks]
    assert lines == [("tasks.plain", 10), ("shop.send", 14)]
    assert features(found, "shop.send") == {
        "option.bind", "option.name", "option.max_retries", "option.rate_limit",
        "self.request.id", "self.request.retries", "self.request.delivery_info", "self.retry",
        "retry.exc", "retry.countdown",
        "exception.SoftTimeLimitExceeded", "exception.Ignore",
    }  # fmt: skip
    assert {use.feature for use in found.others} == {
        "setting.broker_url", "setting.task_always_eager", "signal.task_prerun",
    }  # fmt: skip


def test_calls_are_found_with_their_tasks() -> None:
    found = scanned(TASKS)
    assert sorted((call.name, call.tasks) for call in found.calls) == [
        ("apply_async", ("shop.send",)),
        ("chain", ("tasks.plain", "shop.send")),
        ("delay", ("tasks.plain",)),
        ("s", ("shop.send",)),
        ("s", ("tasks.plain",)),
        ("s", ("tasks.plain",)),
        ("send_task", ("shop.send",)),
    ]
    [call] = [call for call in found.calls if call.name == "apply_async"]
    assert {use.feature for use in call.uses} == {
        "call.apply_async", "apply_async.countdown", "apply_async.link",
    }  # fmt: skip


def test_what_is_missing_is_ranked_by_the_tasks_that_it_blocks() -> None:
    found = scanned(TASKS + "    plain.chunks([], 2), send.chunks([], 2)\n    send.map([])\n")
    assert found.verdicts() == {"tasks.plain": "unsupported", "shop.send": "unsupported"}
    assert [(each.feature, each.tasks) for each in found.missing()][:2] == [
        ("call.chunks", 2), ("call.map", 1),
    ]  # fmt: skip
    assert found.worst == "unsupported"
    assert found.at_most_once == 2


def test_a_canvas_is_the_same() -> None:
    found = scanned(TASKS)
    assert found.verdicts() == {"tasks.plain": "same", "shop.send": "edit"}  # Its rate_limit.
    found = scanned(TASKS + "    plain.s().on_error(send.s())\n    group(plain.s() | send.s())()\n")
    assert found.verdicts()["tasks.plain"] == "same"
    [call] = [call for call in found.calls if call.name == "on_error"]
    assert (call.tasks, call.line) == (("shop.send", "tasks.plain"), 33)


@pytest.mark.parametrize(
    "text",
    [
        "import celery\n@celery.shared_task\ndef f(): ...",
        "from celery import current_app\n@current_app.task\ndef f(): ...",
        "from shop.celery import app as c\nimport celery\n@c.task()\ndef f(): ...",
        "from celery.task import periodic_task\n@periodic_task(run_every=5)\ndef f(): ...",
        "from celery import shared_task\ndef f(): ...\nf = shared_task(f)",
        "from celery import Celery\ndef f(): ...\nc = Celery()\ng = c.task(name='x')(f)",
        "from celery import Task\nclass F(Task):\n    def run(self): ...",
    ],
)
def test_each_way_to_write_a_task(text: str) -> None:
    assert len(scanned(text).tasks) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from procrastinate import App\napp = App()\n@app.task\ndef f(): ...",
        "import celery\nfrom prefect import task\n@task\ndef f(): ...",
        "from celery import Task\nclass Base(Task):\n    abstract = True\n    def run(self): ...",
        "from celery import Task\nclass Base(Task):\n    def on_failure(self, *args): ...",
    ],
)
def test_what_is_no_task_of_celery(text: str) -> None:
    assert scanned(text).tasks == []


def test_tasks_of_one_name_are_counted_each() -> None:
    text = "from celery import shared_task\n@shared_task(name='x')\ndef f(): ...\n"
    found = scanned(text, others=text)
    assert found.counts() == {"same": 2, "edit": 0, "unsupported": 0}


def test_a_decorator_of_the_project_makes_tasks() -> None:
    made = """
        from celery import shared_task
        def instrumented(name, **options):
            def wrapped(function):
                return shared_task(name=name, **options)(function)
            return wrapped
    """
    found = scanned("from base import instrumented\n@instrumented('x')\ndef f(): ...", base=made)
    assert [(task.name, task.verdict) for task in found.tasks] == [("x", "edit")]


def test_a_call_is_followed_through_the_modules_that_pass_the_task_on() -> None:
    found = scanned(
        "from celery import shared_task\n@shared_task\ndef f(): ...",
        passes="from tasks import f as g",
        calls="import passes\npasses.g.delay(1)",
    )
    assert [call.tasks for call in found.calls] == [("tasks.f",)]


def test_a_signature_for_a_schedule_is_no_workflow() -> None:
    found = scanned(
        """
        from celery import Celery
        app = Celery()
        @app.task
        def f(): ...
        @app.on_after_configure.connect
        def setup(sender, **kwargs):
            sender.add_periodic_task(30.0, f.s())
        """
    )
    assert [(call.name, call.tasks) for call in found.calls] == [
        ("add_periodic_task", ("tasks.f",))
    ]
    assert found.verdicts() == {"tasks.f": "edit"}


def test_a_task_in_a_transactions_callback_is_told_that_it_can_join() -> None:
    found = scanned(
        """
        from celery import shared_task
        from django.db import transaction
        from functools import partial
        @shared_task
        def f(at): ...
        transaction.on_commit(lambda: f.delay(1))
        transaction.on_commit(partial(f.delay, 1))
        """
    )
    assert [{use.feature for use in call.uses} for call in found.calls] == [
        {"call.delay", "call.on_commit"}
    ] * 2


def test_types_that_json_has_not_and_pickle_are_told() -> None:
    found = scanned(
        """
        from celery import shared_task
        from datetime import datetime
        from decimal import Decimal
        @shared_task(serializer="pickle")
        def f(at): ...
        f.delay(datetime.now(), Decimal(1))
        """
    )
    assert [use.name for use in found.silent()] == ["Decimal", "datetime"]
    assert found.verdicts() == {"tasks.f": "unsupported"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CELERY_TASK_ALWAYS_EAGER = True", "task_always_eager"),
        ("CELERY_ALWAYS_EAGER = True", "task_always_eager"),
        ("CELERYD_CONCURRENCY = 4", "worker_concurrency"),
        ("CELERY_BEAT_SCHEDULE = {}", "beat_schedule"),
        ("BROKER_URL = 'x'", "broker_url"),
        ("from celery import Celery\na = Celery()\na.conf.update(task_routes={})", "task_routes"),
        ("from celery import Celery\na = Celery()\na.conf['timezone'] = 'UTC'", "timezone"),
    ],
)
def test_settings_by_any_of_their_names(text: str, name: str) -> None:
    found = scanned(text + "\nimport celery\nDEBUG = True")
    assert [use.name for use in found.others] == [name]


def test_settings_of_a_module_that_the_app_is_configured_from() -> None:
    found = scanned(
        "from celery import Celery\nc = Celery()\nc.config_from_object('conf')",
        conf="task_time_limit = 5\nother = 1",
    )
    assert [use.name for use in found.others] == ["task_time_limit"]


def test_files_that_are_no_python_are_told_and_folders_of_others_are_left_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "tasks.py").write_text(TASKS)
    (tmp_path / "shop" / "old.py").write_text("print 'x'")
    (tmp_path / "shop" / "zero.py").write_bytes(b"\0")
    (tmp_path / "shop" / "deep.py").write_text(f"import celery\nx = {'1 + ' * 900}1\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "tasks.py").write_text(TASKS)
    (tmp_path / "env2").mkdir()
    (tmp_path / "env2" / "pyvenv.cfg").write_text("")
    (tmp_path / "env2" / "tasks.py").write_text(TASKS)
    found = scan(tmp_path)
    assert [task.name for task in found.tasks] == ["shop.tasks.plain", "shop.send"]
    assert sorted(file.path for file in found.unreadable) == [
        "shop/deep.py",
        "shop/old.py",
        "shop/zero.py",
    ]
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "missing")


def test_every_feature_says_what_to_do_unless_it_is_the_same() -> None:
    for kind, table in TABLE.items():
        for name in table:
            found = feature(kind, name)
            assert found.verdict == "same" or found.note, f"{kind}.{name}"
    assert feature("setting", "broker_anything").note
    assert feature("signal", "no_such_signal").verdict == "unsupported"


@given(st.data())
def test_no_source_breaks_the_scan(data: st.DataObject) -> None:
    """Lines of a source that uses everything, in any choice that is Python still."""
    lines = TASKS.splitlines()
    kept = data.draw(st.lists(st.sampled_from(range(len(lines))), max_size=12))
    text = "\n".join(lines[at].strip() for at in kept)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    scan_project(Project([Module("x.py", "x", tree, package=False)]))


def test_the_page_has_the_tables_of_today() -> None:
    page = celery_doc.PAGE.read_text()
    assert page == celery_doc.written(page), "run: python scripts/celery_doc.py"
    assert celery_doc.TITLES.keys() == TABLE.keys()


def test_a_router_and_the_names_of_late_make_tasks() -> None:
    found = scanned("""
        import late
        from late.celery import Celery, shared_task
        from late.celery.router import Router

        app = Celery("shop", late_app=late.App("sqlite:///shop.db"))
        router = Router(late.App("sqlite:///shop.db"), None)

        @app.task
        def one(): ...

        @router.task(bind=True)
        def two(self): ...

        @shared_task
        def three(): ...

        two.delay()
    """)
    assert len(found.tasks) == 3
    assert len(found.calls) == 1

"""`late celery scan`: a table for people, JSON for programs, an exit code for CI."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli_kit import Cli

TASKS = """
from celery import shared_task
from decimal import Decimal

@shared_task
def plain(price): ...

@shared_task(rate_limit="1/s")
def slow(): ...

plain.delay(Decimal(1))
"""
APP = """
class Loader:
    def import_default_modules(self): ...

class App:
    loader = Loader()
    tasks = {"celery.ping": 0, "shop.tasks.plain": 0, "shop.tasks.slow": 0, "library.clean": 0}
    def finalize(self, auto): ...

app = App()
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project in the current folder."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "tasks.py").write_text(TASKS)
    (folder / "main.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    own = ("shop", "make_celery", "mail_tasks", "library_tasks")
    for name in [each for each in sys.modules if each.partition(".")[0] in own]:
        del sys.modules[name]


def test_the_table_says_what_is_missing_and_what_changes_silently(cli: Cli, shop: Path) -> None:
    (shop / "old.py").write_text("print 1")
    text = cli.fine("celery", "scan", "shop").out
    assert text.startswith("2 tasks: 1 same, 1 edit, 0 unsupported; 1 calls\n")
    assert "option.rate_limit" in text
    assert "2 tasks without acks_late" in text
    assert "tasks.py:11: argument.Decimal: late.celery gives it back as itself" in text
    assert "old.py:1: not read" in text
    assert "shop.tasks.slow" not in text
    assert "shop.tasks.slow" in cli.fine("celery", "scan", "shop", "--all").out


def test_json_has_every_task_with_its_uses(cli: Cli, shop: Path) -> None:
    found = cli.fine("celery", "scan", "shop", "--json").json
    assert [(task["name"], task["verdict"]) for task in found["tasks"]] == [
        ("shop.tasks.plain", "same"), ("shop.tasks.slow", "edit"),
    ]  # fmt: skip
    assert found["tasks"][1]["uses"] == [
        {
            "feature": "option.rate_limit",
            "verdict": "edit",
            "path": "tasks.py",
            "line": 8,
            "note": "it holds for all workers together: give it more",
        }
    ]
    assert found["counts"] == {"same": 1, "edit": 1, "unsupported": 0}


@pytest.mark.parametrize(("worst", "code"), [("edit", 1), ("unsupported", 0)])
def test_the_exit_code_is_for_ci(cli: Cli, shop: Path, worst: str, code: int) -> None:
    assert cli("celery", "scan", "shop", "--fail-on", worst).code == code


def test_an_app_tells_of_tasks_that_the_source_does_not_show(cli: Cli, shop: Path) -> None:
    found = cli.fine("celery", "scan", "shop.main:app", "--json").json
    assert found["unseen"] == ["library.clean"]


def test_an_app_finds_the_tasks_of_the_packages_beside_its_own(cli: Cli, shop: Path) -> None:
    (shop.parent / "mail").mkdir()
    (shop / "tasks.py").rename(shop.parent / "mail" / "tasks.py")
    found = cli.fine("celery", "scan", "shop.main:app", "--json").json
    assert [task["name"] for task in found["tasks"]] == ["mail.tasks.plain", "mail.tasks.slow"]


def test_an_app_beside_the_package_with_its_tasks_finds_them(cli: Cli, shop: Path) -> None:
    (shop.parent / "make_celery.py").write_text(APP)
    found = cli.fine("celery", "scan", "make_celery:app", "--json").json
    assert [task["name"] for task in found["tasks"]] == ["shop.tasks.plain", "shop.tasks.slow"]
    assert found["unseen"] == ["library.clean"]


OTHER = """
class T: ...
if not T:
    from celery import shared_task
    @shared_task
    def plain(): ...
"""
OF_OTHERS = """
import library_tasks, mail_tasks
App.tasks = {f"{each.__module__}.plain": each for each in (library_tasks.T, mail_tasks.T)}
"""


def test_tasks_in_another_folder_are_read_too_and_those_of_installed_packages_are_not(
    cli: Cli, shop: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, library = (tmp_path_factory.mktemp(name) for name in ("other", "library"))
    for folder, name in ((other, "mail_tasks"), (library / "site-packages", "library_tasks")):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(OTHER)
        monkeypatch.syspath_prepend(folder)
    (shop / "main.py").write_text(APP + OF_OTHERS)
    found = cli.fine("celery", "scan", "shop.main:app", "--json").json
    assert "mail_tasks.plain" in [task["name"] for task in found["tasks"]]
    assert found["unseen"] == ["library_tasks.plain"]


def test_an_app_whose_tasks_are_not_found_is_no_success(cli: Cli, shop: Path) -> None:
    (shop / "tasks.py").write_text("from celery import shared_task\n@shared_task\ndef plain(): ...")
    assert cli("celery", "scan", "shop", "--fail-on", "edit").code == 0
    assert cli("celery", "scan", "shop.main:app", "--fail-on", "edit").code == 1
    assert cli("celery", "scan", "shop.main:app", "--fail-on", "unsupported").code == 0
    (shop / "tasks.py").unlink()
    result = cli("celery", "scan", "shop.main:app")
    assert result.code == 1
    assert "registered, and not found in the source: library.clean, shop.tasks" in result.out


def test_an_app_in_a_folder_that_is_no_package_has_its_tasks_too(cli: Cli, shop: Path) -> None:
    (shop / "__init__.py").unlink()
    assert cli.fine("celery", "scan", "shop.main", "--json").json["unseen"] == ["library.clean"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("missing/", "there is no missing/"),
        ("missing.py", "there is no missing.py"),
        ("missing", "no module"),
        ("shop.main:nothing", "has no 'nothing'"),
        ("shop.main:APP:x", "expected MODULE:APP"),
        ("shop.main:Loader", "is no app of Celery"),
    ],
)
def test_a_target_that_is_none_is_one_line(cli: Cli, shop: Path, target: str, said: str) -> None:
    assert said in cli.refused("celery", "scan", target)


def test_a_folder_without_tasks_has_none(cli: Cli, shop: Path) -> None:
    (shop / "tasks.py").unlink()
    assert cli.fine("celery", "scan").out.startswith("0 tasks: 0 same")

"""A project laid out as Celery's docs say: its package imports Celery's app, which needs late's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILES = {
    "manage.py": """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "project/__init__.py": "from .celery import app as celery_app\n",
    "project/celery.py": """
import os
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
from late.celery import Celery
from late.contrib.django import app as late_app
app = Celery("project", late_app=late_app)
app.autodiscover_tasks()
""",
    "project/settings.py": """
import os
SECRET_KEY = "x"
INSTALLED_APPS = ["late.contrib.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SHOP_FILE"],
    "OPTIONS": {"timeout": 30}}}
USE_TZ = True
""",
    "shop/__init__.py": "",
    "shop/tasks.py": """
import os
from pathlib import Path
from late.contrib.django import app

@app.task(queue="notes")
def note(text: str) -> None:
    with open(os.environ["SHOP_NOTES"], "a") as file:
        file.write(f"{text} {os.getppid()}\\n")
""",
}
ENQUEUE = """
from django.db import connection, transaction
from shop.tasks import note
import late.contrib.django, project.celery
assert project.celery.late_app is late.contrib.django.app
with transaction.atomic():
    note.enqueue(connection, "hello")
"""


class Project:
    """The project in a folder; commands run in another one, as a process manager starts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "site"
        self.notes = folder / "notes"
        self._elsewhere = folder
        self.environment = os.environ | {
            "SHOP_FILE": str(folder / "shop.db"), "SHOP_NOTES": str(self.notes),
        }  # fmt: skip
        self.environment.pop("LATE_URL", None)
        for name, text in FILES.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.folder / "manage.py"), *arguments]

    def manage(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            self.command(*arguments), cwd=self._elsewhere, env=self.environment, text=True,
            capture_output=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        with (self._elsewhere / "log").open("ab") as log:
            return subprocess.Popen(
                self.command("late_worker", *options), cwd=self._elsewhere, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def log(self) -> str:
        return (self._elsewhere / "log").read_text()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    found.manage("migrate")
    return found


def test_several_worker_processes_find_the_app_and_the_project(project: Project) -> None:
    worker = project.start("--processes", "2")
    try:
        project.manage("shell", "-c", ENQUEUE)
        until = time.monotonic() + 120
        while not project.notes.exists():
            assert worker.poll() is None, project.log()
            assert time.monotonic() < until, project.log()
            time.sleep(0.1)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(120)
    # Each line is of a child of that parent; a busy machine may let a task run once more.
    assert set(project.notes.read_text().splitlines()) == {f"hello {worker.pid}"}
    assert "ImportError" not in project.log()


def test_commands_that_want_an_app_take_that_of_the_project(project: Project) -> None:
    assert "cannot run: none" in project.manage("late", "check")
    refused = project.manage("late", "enqueue", "nope", code=2)
    assert "nope" in refused
    said = project.manage("late", "enqueue", "note", "--args", '{"text": "by hand"}')
    assert "notes" in project.manage("late", "show", said.split()[-1])

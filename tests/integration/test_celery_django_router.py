"""A Django project with Celery and a router: `manage.py late_worker` runs both kinds of orders."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILES = {
    "manage.py": """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "project/__init__.py": "from project.celery import celery_app\n",
    "project/settings.py": """
from pathlib import Path
BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "of a test"  # pragma: allowlist secret
USE_TZ = True
INSTALLED_APPS = ["late.contrib.django", "shop"]
FILE = {
    "ENGINE": "django.db.backends.sqlite3",
    "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
}
DATABASES = {
    "default": {**FILE, "NAME": BASE_DIR / "other.db"},
    "orders": {**FILE, "NAME": BASE_DIR / "orders.db"},
}
LATE = {"DATABASE": "orders", "SHARDS": 2}
CELERY_BROKER_URL = "filesystem://"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "data_folder_in": str(BASE_DIR / "broker"),
    "data_folder_out": str(BASE_DIR / "broker"),
    "control_folder": str(BASE_DIR / "control"),
}
CELERY_IMPORTS = ["shop.jobs"]
""",
    "project/celery.py": """
import os
from celery import Celery
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
celery_app = Celery("project")
celery_app.config_from_object("django.conf:settings", namespace="CELERY")
celery_app.autodiscover_tasks()

from late.celery.router import Router
from late.contrib.django import app

router = Router(app, celery_app)
""",
    "shop/__init__.py": "",
    "shop/tasks.py": """
from pathlib import Path
from project.celery import router

@router.task
def send(n):
    with Path("ran").open("a") as file:
        file.write(f"{n}\\n")
""",
    "shop/jobs.py": """
from project.celery import router
from shop import tasks

@router.task
def job(n):
    tasks.send(n)
""",
}
CALLS = """
from django.db import transaction
from shop.jobs import job
from shop.tasks import send
for n, task in enumerate((send, job)):
    for fails in (False, True):
        try:
            with transaction.atomic("orders"):
                task.delay(n + 10 * fails)
                assert not fails
        except AssertionError:
            pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for folder in ("broker", "control"):
        (tmp_path / folder).mkdir()
    return tmp_path


def manage(project: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=project, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LATE_URL"}


def test_a_worker_of_the_project_runs_late_s_calls_and_hands_celery_its_own(project: Path) -> None:
    manage(project, "migrate", "--database", "orders", "--verbosity", "0")
    manage(project, "late", "celery", "ramp", "shop.jobs.job", "100")
    manage(project, "shell", "-c", CALLS)
    with (project / "log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "manage.py", "late_worker"],
            cwd=project, env=environment(), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        ran, broker = project / "ran", project / "broker"
        patience = time.monotonic() + 120
        while not (ran.exists() and ran.read_text() and list(broker.iterdir())):
            assert worker.poll() is None, (project / "log").read_text()
            assert time.monotonic() < patience, (project / "log").read_text()
            time.sleep(0.1)
    finally:
        worker.terminate()
        worker.wait(120)
    assert ran.read_text() == "1\n"
    (message,) = broker.iterdir()
    assert "shop.tasks.send" in message.read_text()

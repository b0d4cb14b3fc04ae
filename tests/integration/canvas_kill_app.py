"""The app of the worker processes in `test_celery_canvas_kill.py`: some tasks kill their worker
once, the first time that they run."""

from __future__ import annotations

import os
import signal

import late
from late import celery
from tests.integration.kill_app import witness

URL = os.environ.get("LATE_TEST_KILL_URL", "sqlite:///unused.db")
app = celery.Celery("kill", late_app=late.App(URL, shards=4))


def die_once(name: str) -> None:
    path = os.path.join(os.environ["LATE_TEST_KILL_DIR"], f"{name}.died")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, name="step", ignore_result=True)
def step(self: celery.Task, number: int, *, dies: str = "") -> int:
    witness(str(self.request.id))
    if dies:
        die_once(dies)
    return number + 1


@app.task(bind=True, name="total")
def total(self: celery.Task, numbers: list[int], *, dies: str = "") -> int:
    witness(str(self.request.id))
    if dies:
        die_once(dies)
    return sum(numbers)

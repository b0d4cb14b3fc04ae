"""The service: one task, which Celery and late both run.

It writes down who ran it: a line of the file `ran`, with the call's number and the side.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from celery import Celery

import late
from late.celery.router import Router

HERE = Path(os.environ.get("SHOP", "."))
URL = f"sqlite:///{HERE / 'shop.db'}"
BOX = str(HERE / "broker")

celery_app = Celery("shop", broker="filesystem://")
celery_app.conf.update(
    broker_transport_options={
        "data_folder_in": BOX,
        "data_folder_out": BOX,
        "control_folder": str(HERE / "control"),
    },
    # A call is repeated if the process that runs it is killed.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)
router = Router(late.App(URL), celery_app)


@router.task(name="shop.send", ignore_result=True)
def send(n: int) -> None:
    time.sleep(0.01)
    with contextlib.suppress(FileNotFoundError):
        (HERE / f"kill-{os.environ['SIDE']}").unlink()  # One process finds it, and dies.
        os.kill(os.getpid(), signal.SIGKILL)
    line = f"{n} {os.environ['SIDE']}\n".encode()
    ran = os.open(HERE / "ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ran, line)  # One write of a short line to the end of a file is whole.
    os.close(ran)

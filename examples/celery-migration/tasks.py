"""The service: a task, and a canvas of three, which Celery and late both run.

They write down who ran them: a line of the file `ran`, with the call's number and the side.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import broker
from celery import Celery, chord

import late
from late.celery.router import Router

HERE = Path(os.environ.get("SHOP", ".")).resolve()
URL = f"sqlite:///{HERE / 'shop.db'}"
BOX = str(HERE / "broker")

broker.install()
celery_app = Celery("shop", broker="filesystem://", backend=(HERE / "results").as_uri())
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
    note(n, os.environ["SIDE"])


@router.task(name="shop.price")
def price(cents: int) -> tuple[str, int]:
    return os.environ["SIDE"], cents


@router.task(name="shop.total")
def total(prices: list[tuple[str, int]]) -> tuple[str, int]:
    sides = {os.environ["SIDE"], *(side for side, _ in prices)}
    return "+".join(sorted(sides)), sum(cents for _, cents in prices)


@router.task(name="shop.bill", ignore_result=True)
def bill(found: tuple[str, int], n: int) -> None:
    sides, cents = found
    note(n, sides if cents == 3 * n else "wrong")


def order(n: int) -> None:
    """Call the task, or for each twentieth number the canvas: two prices, their sum, a bill."""
    if is_canvas(n):
        router.delay(chord([price.s(n), price.s(2 * n)], total.s()) | bill.s(n))
    else:
        send.delay(n)


def is_canvas(n: int) -> bool:
    return n % 20 == 5


def note(n: int, side: str) -> None:
    ran = os.open(HERE / "ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(
        ran, f"{n} {side}\n".encode()
    )  # One write of a short line to the end of a file is whole.
    os.close(ran)

"""The app of the workers in drills."""

from __future__ import annotations

import os
import signal
import time

import late

if "LATE_DRILL_CLOCK_S" in os.environ:  # the clock of this process is wrong
    off_s, right, right_ns = float(os.environ["LATE_DRILL_CLOCK_S"]), time.time, time.time_ns
    time.time = lambda: right() + off_s
    time.time_ns = lambda: right_ns() + round(off_s * 1e9)

BANK = os.environ.get("LATE_DRILL_BANK", "http://127.0.0.1:9/")
app = late.App(
    os.environ.get("LATE_URL", "sqlite:///unused.db"),
    targets=[late.HttpTarget("bank", BANK, probe="/healthz")],
)
charge = app.remote(
    "charge", target="bank", queue="payments", retry=late.Retry(max_attempts=50, base=0.2, cap=1.0)
)


@app.task(queue="mail")
def note(number: int) -> None:
    """End at once."""


@app.task(queue="shop")
def work() -> None:
    """Take half a second."""
    time.sleep(0.5)


@app.task(queue="reports", timeout_s=1.0)
def hang(number: int) -> None:
    """Run on after its time-out, in a thread that nobody can end."""
    time.sleep(3_600)


@app.task(queue="invoices", timeout_s=1.0)
def hang_too(number: int) -> None:
    """Do the same: two tasks that hang hold every slot."""
    time.sleep(3_600)


@app.task(queue="imports")
def crash() -> None:
    """Kill the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)


ADD = "update account set balance = balance + 1 where id = %s"


@app.task(queue="ledger")
def pay(ctx: late.Context) -> None:
    """Change two rows."""
    _change(ctx, 7, 8)


@app.task(queue="ledger")
def refund(ctx: late.Context) -> None:
    """Change the same two in the other order."""
    _change(ctx, 8, 7)


def _change(ctx: late.Context, *rows: int) -> None:
    with ctx.begin() as tx:
        for row in rows:
            tx.execute(ADD, (row,))
            time.sleep(0.05)


def long_report() -> None:
    """Take longer than the period of its schedule."""
    time.sleep(600)


if os.environ.get("LATE_DRILL_SCHEDULE"):
    app.schedule(every=2.0, overlap="skip", name="minutely")(app.task(queue="reports")(long_report))

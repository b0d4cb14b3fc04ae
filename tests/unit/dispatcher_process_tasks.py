"""Handlers for child processes: found there by the name of their function."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from late.handler.context import Context
from late.handler.outcomes import Retry, Snooze
from tests.unit.dispatcher_kit import task


@task(process=True)
def whoami(path: str) -> None:
    Path(path).write_text(str(os.getpid()))


@task(process=True)
def end_badly(how: str) -> None:
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


@task(process=True, timeout_s=2.0)
def hang(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while True:
        time.sleep(60)


@task(process=True)
def hold(path: str, gate: str) -> None:
    """Runs until the file `gate` exists."""
    Path(path).write_text(str(os.getpid()))
    while not Path(gate).exists():
        time.sleep(0.01)


@task(process=True, timeout_s=2.0)
def beat(ctx: Context) -> None:
    ends = time.monotonic() + 2.5
    while time.monotonic() < ends:
        ctx.heartbeat()
        time.sleep(0.02)


@task(process=True, retry=Retry(give_up_on=KeyError))
def fail(how: str) -> object:
    match how:
        case "value":
            raise ValueError("password=hunter2")
        case "key":
            raise KeyError("gone")
        case "snooze":
            return Snooze(5)
        case "exit":
            raise SystemExit(2)
        case _:
            raise Retry(after_s=7)


@task(process=True)
def tell(ctx: Context, path: str) -> None:
    Path(path).write_text(f"{ctx.task_id} {ctx.attempt} {ctx.group} {ctx.headers['trace']}")


@task(process=True)
def start_program(path: str) -> None:
    """A program that a handler starts can be ended as usual: the signal is not ignored in it."""
    with subprocess.Popen(["sleep", "60"]) as program:
        program.terminate()
        Path(path).write_text(str(program.wait()))


class Tasks:
    """What an app is to a child that is given `module:attribute`."""

    tasks = {"by app": whoami}  # noqa: RUF012


apps = Tasks()


@task(process=True)
def backend(ctx: Context) -> None:
    """Notes which backend of PostgreSQL it has."""
    with ctx.once() as tx:
        tx.execute("insert into effect values (pg_backend_pid())")

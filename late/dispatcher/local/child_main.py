"""The child's end of the process pool: import, then run one attempt after the other.

The handler runs in the main thread, where libraries expect to be; a second thread reads the
socket, so that the end of the worker (however it ended: the socket closes) ends the child at
once, and with it a run that another worker is about to repeat.

Signals that a terminal or a supervisor sends to the whole process group are not for the child:
the worker decides how it stops, and ends its children when it is done. They get a handler that
does nothing rather than being ignored, because an ignored signal would stay ignored in the
programs that a handler starts.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any, cast

from late.dispatcher.handler import Bound, Handler
from late.dispatcher.local.child_protocol import (
    LENGTH_BYTES,
    Beat,
    Broken,
    FromChild,
    Ready,
    Reply,
    Run,
    decode_run,
    frame,
)
from late.dispatcher.local.soft_limit import SoftLimitAlarm
from late.dispatcher.subject_keys import arguments_with
from late.handler.classify import Verdict, describe, raised, returned
from late.handler.context import Context
from late.handler.outcomes import AlreadyDone
from late.model.task import Attempt
from late.observability import traces
from late.outbox.idle_connections import IdleConnections
from late.payload.subject_keys import SubjectKeyNeeded
from late.schema import held_files

GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(
    sock: socket.socket,
    url: str,
    app: str | None,
    modules: tuple[str, ...],
    files: dict[str, held_files.FileId],
) -> None:
    """Serve the worker at the other end of `sock` until it closes it. Never returns normally.

    Args:
        files: the files of databases that the worker has open; see `held_files`.
    """
    held_files.inherit(files)
    for number in GROUP_SIGNALS:
        signal.signal(number, lambda *_: None)
    # The worker blocked them before it started this process, so that none arrives too early.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
    lock = threading.Lock()

    def send(message: FromChild) -> None:
        with lock:  # A handler may send its heartbeat from a thread of its own.
            sock.sendall(frame(message))

    runs: SimpleQueue[Run] = SimpleQueue()
    threading.Thread(target=_read, args=(sock, runs), daemon=True).start()
    try:
        find = _finder(app, modules)
    except BaseException as error:
        send(Broken(describe(error)))
        os._exit(1)
    send(Ready())
    bound: dict[tuple[str, str], Bound] = {}
    idle = IdleConnections(1)
    while True:
        run = runs.get()
        try:
            key = (run.module, run.qualname)
            if key not in bound:
                bound[key] = Bound(find(run))
            verdict = run_one(run, bound[key], url, lambda: send(Beat()), idle)
        except BaseException as error:
            verdict = Verdict("not_capable", error=describe(error), reason="no_process")
        send(Reply(verdict))


def run_one(
    run: Run, bound: Bound, url: str, beat: Callable[[], None], idle: IdleConnections
) -> Verdict:
    """Decode, call, classify: what the dispatcher does for the other kinds of handlers."""
    attempt = run.attempt
    if attempt.timeout_us is not None:
        bound = bound.within(attempt.timeout_us / 1_000_000)
    traces.current.set(attempt)
    limit = SoftLimitAlarm(bound.soft_timeout_s)

    def alive(attempt: Attempt) -> None:
        beat()
        limit.restart()

    try:
        try:
            arguments = bound.decode(attempt.record, attempt.options)
        except SubjectKeyNeeded as needed:
            arguments = arguments_with(needed, bound, attempt, url, idle)
        call, context = bound.fn, None
        if bound.wants_context:
            context = Context(
                attempt,
                started_at_us=run.started_at_us,
                timeout_s=bound.timeout_s,
                soft_timeout_s=bound.soft_timeout_s,
                attempts_max=bound.attempts_max,
                url=url,
                beat=alive,
                idle=idle,
            )
            call = partial(call, context)
        with limit:
            try:
                value: object = call(**arguments)
            except AlreadyDone as signal:
                value = signal
        return returned(value if context is None else context.counted(value))
    except BaseException as error:
        return raised(error, bound.rule)


def _finder(app: str | None, modules: tuple[str, ...]) -> Callable[[Run], Handler]:
    """Import all that handlers need, and say how to find one."""
    for name in modules:
        import_module(name)
    if app is not None:
        module, _, attribute = app.partition(":")
        found = getattr(import_module(module), attribute or "app")
        found = getattr(found, "late_app", found)  # A `Celery` or a `Router` carries one.
        _open_resources(found)
        tasks = found.tasks
        return lambda run: cast(Handler, tasks[run.attempt.record.name])
    return _by_name


def _by_name(run: Run) -> Handler:
    """The object at `module.qualname`: decorating put the handler where its function was."""
    found: Any = import_module(run.module)
    for part in run.qualname.split("."):
        found = getattr(found, part)
    if not hasattr(found, "decode"):
        raise LookupError(f"{run.module}.{run.qualname} is not a task")
    _open_resources(getattr(found, "app", None))
    return cast(Handler, found)


def _open_resources(app: object) -> None:
    """Open what the handlers of an app share, if `app` is one that has something."""
    if (span := getattr(app, "span", None)) is not None:
        span.open_in_child()


def _read(sock: socket.socket, runs: SimpleQueue[Run]) -> None:
    while True:
        length = int.from_bytes(_exactly(sock, LENGTH_BYTES), "big")
        runs.put(decode_run(_exactly(sock, length)))


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = sock.recv(count - len(parts))
        except OSError:
            part = b""
        if not part:
            os._exit(0)
        parts += part
    return bytes(parts)

"""Celery's signals: functions that are called around tasks, calls and workers.

    from late.celery.signals import task_failure

    @task_failure.connect(sender=charge)
    def tell(sender=None, task_id=None, exception=None, **kwargs): ...

Receivers get keyword arguments only, the same as with Celery, and `signal` and `sender`. They run
in the thread of what they tell about, and before the record of a task's end. What a receiver raises
is logged and changes nothing. Receivers of `celery.signals` hear of tasks on `late` as well.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from late import events

_log = logging.getLogger("late.celery")

Receiver = Callable[..., Any]

_CELERYS_TOO = {"task_prerun", "task_postrun", "task_success", "task_failure", "task_retry"}
"""Signals that receivers of Celery's own get too, where the process has imported those."""


class Signal:
    """One kind of event. Any thread may connect, disconnect and send."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        # Replaced as a whole, so that `send` needs no lock: (key, sender, reference to receiver).
        self._receivers: tuple[tuple[object, Any, Callable[[], Receiver | None]], ...] = ()

    def __repr__(self) -> str:
        return f"<Signal: {self.name}>"

    def connect(
        self,
        receiver: Receiver | None = None,
        sender: Any = None,
        weak: bool = True,
        dispatch_uid: object = None,
    ) -> Any:
        """Call `receiver` from now on; a decorator, with or without arguments.

        Args:
            sender: call it for this sender only: a task, or the name of one for publish signals.
            weak: forget it when nothing else holds it.
            dispatch_uid: the identity of the receiver; by default itself. A second connection of
                the same one with the same sender is ignored.
        """
        if receiver is None:
            return lambda found: self.connect(found, sender, weak, dispatch_uid)
        key = _key(receiver, dispatch_uid)
        with self._lock:
            living = tuple(kept for kept in self._receivers if kept[2]() is not None)
            if not any((known, wanted) == (key, sender) for known, wanted, _ in living):
                living += ((key, sender, _reference(receiver, weak)),)
            self._receivers = living
        return receiver

    def disconnect(
        self,
        receiver: Receiver | None = None,
        sender: Any = None,
        dispatch_uid: object = None,
    ) -> bool:
        """End the connection that has this receiver or uid, and sender; return whether it was."""
        key = _key(receiver, dispatch_uid)
        with self._lock:
            before = self._receivers
            self._receivers = tuple(kept for kept in before if kept[:2] != (key, sender))
            return len(self._receivers) < len(before)

    def send(self, sender: Any, **named: Any) -> list[tuple[Receiver, Any]]:
        """Call the receivers, and return each with its answer or the exception that it raised."""
        answers: list[tuple[Receiver, Any]] = []
        for _, wanted, reference in self._receivers:
            receiver = reference()
            if receiver is None or not (wanted is None or wanted is sender or wanted == sender):
                continue
            try:
                answer = receiver(signal=self, sender=sender, **named)
            except Exception as error:
                _log.exception("a receiver of %s failed", self.name)
                answer = error
            answers.append((receiver, answer))
        theirs = sys.modules.get("celery.signals") if self.name in _CELERYS_TOO else None
        other = getattr(theirs, self.name, self)
        if other is not self:  # A project may have put these signals in the place of Celery's.
            answers += other.send(sender=sender, **named)
        return answers


def _key(receiver: Receiver | None, uid: object) -> object:
    """Return the identity of a receiver: a bound method is a new object at each access."""
    if uid is not None:
        return uid
    owner, function = getattr(receiver, "__self__", None), getattr(receiver, "__func__", receiver)
    return id(owner), id(function)


def _reference(receiver: Receiver, weak: bool) -> Callable[[], Receiver | None]:
    if not weak:
        return lambda: receiver
    return weakref.WeakMethod(receiver) if hasattr(receiver, "__self__") else weakref.ref(receiver)


before_task_publish = Signal("before_task_publish")
"""`body`, `headers` of the call (may be changed), `exchange`, `routing_key`. Its sender is a task's
name."""
after_task_publish = Signal("after_task_publish")
"""The same; `headers` has the `id` and the `task` too. The transaction has not committed yet."""
task_prerun = Signal("task_prerun")
"""`task_id`, `task`, `args`, `kwargs`. The sender of the signals of a task is the task."""
task_postrun = Signal("task_postrun")
"""The same, `retval` and `state`."""
task_success = Signal("task_success")
"""`result`."""
task_failure = Signal("task_failure")
"""`task_id`, `exception`, `args`, `kwargs`, `traceback`, `einfo` (None)."""
task_retry = Signal("task_retry")
"""`request`, `reason`, `einfo` (None)."""
worker_ready = Signal("worker_ready")
"""The sender is the worker's id. It runs in the worker's event loop: be quick."""
worker_shutdown = Signal("worker_shutdown")
"""The same, when the worker has stopped."""


class Publication:
    """One call of a task, told before it is made and after. `options` has the headers then."""

    def __init__(
        self, name: str, queue: str, args: Any, kwargs: Any, options: Mapping[str, Any]
    ) -> None:
        self._name = name
        self._headers = dict(options.get("headers") or {})
        self._told = {"body": (list(args), dict(kwargs), {}), "exchange": "", "routing_key": queue}
        before_task_publish.send(name, headers=self._headers, **self._told)
        self.options = {**options, "headers": dict(self._headers) or None}

    def tell(self, task_id: str) -> None:
        """Send `after_task_publish`. The transaction has not committed yet."""
        self._headers.update(task=self._name, id=task_id)
        after_task_publish.send(self._name, headers=self._headers, **self._told)


def _worker(event: events.Event, values: Mapping[str, Any]) -> None:
    (worker_ready if event is events.WORKER_STARTED else worker_shutdown).send(values["worker"])


events.default.subscribe(_worker, [events.WORKER_STARTED, events.WORKER_STOPPED])

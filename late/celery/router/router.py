"""`Router`: makes a function a task of Celery and of `late`, and sends each call to one of them."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4
from zlib import crc32

import msgspec

from late.app.app import App
from late.app.task import Call
from late.celery.app import Celery
from late.celery.canvas.draft import Draft
from late.celery.exceptions import NotSupported
from late.celery.ids import found
from late.celery.router import canvas as canvases
from late.celery.router.attempts import DUE, Attempts, record
from late.celery.router.control import Control
from late.celery.router.flags import Client, FlagShares
from late.celery.router.message import Message, pack, unpack
from late.celery.router.settings import Followed
from late.celery.router.shares import Shares, takes
from late.celery.task import Task
from late.control.status.celery_shares import FAILED, PREFIX, QUEUE, STARTED
from late.errors import ConfigError, InvalidTask, KeyConflict
from late.handler.context import Context
from late.handler.outcomes import ATTEMPTS_MAX, Retry
from late.model.validation import DELAY_S_MAX, is_name

logger = logging.getLogger("late.celery")

_RETRY = Retry(ATTEMPTS_MAX, cap=60, deadline=DELAY_S_MAX)


class Router:
    """Tasks of two systems. Workers: `celery -A module:celery_app worker`, `late worker
    module:router`.

    Args:
        late_app: the app with the business database.
        celery_app: the app of Celery that the service has.
        flags: a client of OpenFeature, whose flags take the place of the knobs.
        settings: see `late.celery.Celery`. They win over those of `celery_app.conf`, of which a
            task takes limits, queue, routes and results. A call without a transaction opens one.
    """

    def __init__(
        self, late_app: App, celery_app: Any, *, flags: Client | None = None, **settings: Any
    ) -> None:
        self.late_app = late_app
        self.celery_app = celery_app
        given = {"late_outside_transaction": "open", **settings}
        self.late = Celery(celery_app.main, late_app=late_app, **given)
        # Celery runs a second call with an id that was given before, so it gets that one.
        self.late.on_conflict = "reject"
        late_app.loaders.append(self.import_default_modules)
        self.tasks: dict[str, Routed] = {}
        """The tasks of both systems, by name."""
        self._counted: dict[str, tuple[str, str]] = {}
        self._attempts = Attempts(late_app, self._counted)
        self._followed = Followed(self.late, celery_app, given)
        knobs = Shares(lambda: late_app.url)  # In a test run of Django it changes.
        self.shares = knobs if flags is None else FlagShares(flags, knobs)
        self.control = Control(self)

    def __repr__(self) -> str:
        return f"<Router {len(self.late.tasks)} tasks on {self.late!r}>"

    def task(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a task of both systems: `@router.task` or `@router.task(bind=True, ...)`.

        The options are Celery's. With one that `late` does not support the task stays on Celery.
        """

        def make(function: Callable[..., Any]) -> Routed:
            app = self.celery_app
            self._followed.update()
            name = options.get("name") or app.gen_task_name(function.__name__, function.__module__)
            both = {**options, "name": name}
            made = Routed(self, name, app.task(**both)(function), *self._taken(function, both))
            self.tasks[name] = made.wrap(function)
            self._counted[name] = _order_name(FAILED, name), _order_name(STARTED, name)
            record(self.late_app, self._counted[name])
            return made

        return make if fn is None else make(fn)

    def delay(self, canvas: Any) -> Any:
        """Send a canvas of Celery, such as `a.s(1) | b.s()`; see `apply_async`."""
        return self.apply_async(canvas)

    def apply_async(self, canvas: Any, **options: Any) -> Any:
        """Send a canvas of Celery to one of the two systems, and return that system's result.

        It is one workflow of `late` if all its tasks are within their shares. If only some are, it
        stays on Celery, as one that `late` does not support, and is counted.

        Raises:
            ConfigError: it has no task of this router.
            Other errors of `Routed.apply_async`.
        """
        if self.celery_app.conf.task_always_eager:
            return canvas.apply_async(**options)
        call_id, whole = str(uuid4()), canvas.clone(**options)
        refused, steps = self._canvas(whole)
        if refused is None:
            taken = [takes(self.shares.of(name), call_id) for name in canvases.names(whole)]
            if all(taken):
                return Draft(steps).send()
            refused = "mixed" if any(taken) else None
        first = next(self.tasks[name] for name in canvases.names(whole) if name in self.tasks)
        return first.order_canvas(call_id, whole, refused)

    def _canvas(self, canvas: Any) -> tuple[str | None, Any]:
        """Return the reason why a canvas cannot be a workflow, or its steps."""
        try:
            tasks = [self.tasks.get(name) for name in canvases.names(canvas)]
        except NotSupported:
            raise ConfigError("map, starmap and chunks: send them by themselves") from None
        if not any(tasks):
            raise ConfigError("no task of the canvas is made by this router")
        for task in tasks:
            if task is None:
                return "mixed", None
            if task.late_task is None:
                return task.refused, None
        try:
            whole = canvases.translated(canvas, lambda name: self.tasks[name].late_task)
            steps = whole.whole((), {}, {})
            Draft(steps, tell=False)
        except (ConfigError, InvalidTask) as error:
            return _word(str(error), ("link_error", "link", "group"), "canvas"), None
        return None, steps

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Call a task by its name as its `apply_async` does; one that is not here is Celery's."""
        if name in self.tasks:
            return self.tasks[name].apply_async(args, kwargs, **options)
        return self.celery_app.send_task(name, args, kwargs, **options)

    def AsyncResult(self, id: str) -> Any:
        """Return the result of a call by its id, from the system that has the call.

        The ids of `late` are UUIDs of version 7. An id of another form is Celery's, unless a caller
        has chosen it and `late` has the call: to know that is a read of the database.

        Raises:
            StoreError: the database cannot be read.
        """
        known = found(self.late_app, id) is not None
        app = self.late if known else self.celery_app
        return app.AsyncResult(id)

    def import_default_modules(self) -> None:
        """Import the modules with the tasks of Celery's app, as its worker does, and take its
        settings over.

        Raises:
            What they raise is passed on.
        """
        self.celery_app.loader.import_default_modules()
        self.celery_app.finalize(auto=True)
        self._followed.update()

    def _taken(
        self, function: Callable[..., Any], options: Mapping[str, Any]
    ) -> tuple[Task | None, str | None]:
        """Return the task of `late`, or the reason why there is none."""
        # A base class of Celery's tasks needs Celery's worker.
        if options.get("base") is not None or _is_own_class(self.celery_app):
            return None, "base"
        if not is_name(PREFIX + options["name"]):
            return None, "name"
        try:
            task: Task = self.late.task(**options)(function)
        except ConfigError as error:
            if options["name"] in self.late_app.tasks:  # A name that is used twice.
                raise
            return None, _reason(error, options)
        return task, None


class Routed:
    """A task of both systems. What is not here is that of Celery's task, as `s`."""

    def __init__(
        self,
        router: Router,
        name: str,
        celery_task: Any,
        late_task: Task | None,
        refused: str | None,
    ) -> None:
        self.name = name
        self._router = router
        self._celery_task = celery_task
        self.late_task = late_task
        self.refused = refused
        """The reason why there is no `late_task`."""
        self._sender = Task()
        self._sender.bound, self._sender.name = router.late, name

        def publish(ctx: Context, id: str, message: Message, canvas: bool = False) -> None:
            args, kwargs, options = unpack(message)
            if canvas:
                router.celery_app.signature(args[0]).apply_async(**options)
                return
            due_us = round(_due(options, ctx.enqueued_at).timestamp() * 1_000_000)
            options["headers"] = {**(options.get("headers") or {}), DUE: due_us}
            celery_task.apply_async(args, kwargs, **{"task_id": id, **options})

        register = router.late_app.task(name=_order_name(PREFIX, name), queue=QUEUE, retry=_RETRY)
        self._message = register(publish)

    def __repr__(self) -> str:
        return f"<Routed {self.name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # A copy that is half made has no `_celery_task` yet.
            raise AttributeError(name)
        return getattr(self._celery_task, name)

    def wrap(self, function: Callable[..., Any]) -> Routed:
        """Take the name, the text and the module of the user's function, as Celery's task has."""
        functools.update_wrapper(self, function, updated=())
        return self

    def AsyncResult(self, task_id: str) -> Any:
        """Return the result of a call by its id; see `Router.AsyncResult`."""
        return self._router.AsyncResult(task_id)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here."""
        return self._celery_task(*args, **kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Call the task with these arguments; see `apply_async`."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Call the task on one of the two systems, and return that system's `AsyncResult`.

        The call commits with the transaction that is open. What `late` does not support goes to
        Celery. A worker of `late` hands Celery's calls to the broker, at least once, each under one
        id.

        Raises:
            PayloadTooLarge: the arguments are above 1 MiB.
            Other errors of the serializer and of the database.
        """
        router = self._router
        if router.celery_app.conf.task_always_eager:
            return self._celery_task.apply_async(args, kwargs, **options)
        call_id = str(options.get("task_id") or uuid4())
        refused = self.refused
        if self.late_task is not None:
            # Prepared for each call: what is not supported is counted before the first share.
            # `send` prepares it once more, with the headers that receivers of its signals set.
            self.late_task.check(args, kwargs)
            try:
                self.late_task.prepare(args, kwargs, options)
            except (ConfigError, InvalidTask) as error:
                refused = _reason(error, options)
            else:
                if takes(router.shares.of(self.name), call_id):
                    try:
                        return self.late_task.send(args, kwargs, options)
                    except KeyConflict:
                        refused = "task_id"
        message = pack(args, kwargs, options, options.get("serializer") or self.serializer)
        self._order(self._message.call(id=call_id, message=message), refused)
        return router.celery_app.AsyncResult(call_id)

    def order_canvas(self, id: str, canvas: Any, refused: str | None) -> Any:
        """Write the order to hand a canvas to Celery, whose first task is this one."""
        serializer = self.serializer
        ((plain,), _, _) = unpack(pack((canvas,), {}, {}, serializer))
        canvases.give_ids(plain)
        message = pack((plain,), {}, {}, serializer)
        self._order(self._message.call(id=id, message=message, canvas=True), refused)
        return canvases.result_of(plain, self._router.celery_app)

    def _order(self, order: Call, refused: str | None) -> None:
        if refused is not None:
            order = msgspec.structs.replace(order, queue=f"{QUEUE}.{refused}")
        self._sender.insert(order)


def _order_name(prefix: str, task: str) -> str:
    """Return the name under which a worker of `late` has the calls of a task for Celery, or what
    is counted of them there.

    Names of Celery may be longer, and of any characters.
    """
    name = prefix + task
    if is_name(name):
        return name
    plain = re.sub(r"[^A-Za-z0-9._:-]+", "-", name)[:110]
    return f"{plain}-{crc32(task.encode()):08x}"


def _is_own_class(celery_app: Any) -> bool:
    """Return whether the tasks of an app have a class of the service: `task_cls=`, `app.Task`."""
    kinds = getattr(getattr(celery_app, "Task", None), "__mro__", (object,))
    return any(not f"{kind.__module__}.".startswith(("celery.", "builtins.")) for kind in kinds)


def _due(options: Mapping[str, Any], called: datetime) -> datetime:
    """Return when Celery may start a call."""
    eta = options.get("eta")
    if isinstance(eta, str):
        eta = datetime.fromisoformat(eta)
    if eta is None:
        return called
    return max(called, eta if eta.tzinfo else eta.replace(tzinfo=UTC))


def _reason(error: Exception, options: Iterable[str]) -> str:
    """Return the option that the message names, or `arguments`."""
    return _word(str(error).partition(": ")[2], options, "arguments")


def _word(text: str, known: Iterable[str], other: str) -> str:
    """Return the first known word that is in the text, for the name of a queue."""
    words = set(re.findall(r"\w+", text))
    return next((word for word in known if word in words), other)

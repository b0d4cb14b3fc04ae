"""`Celery`, the object in place of Celery's app: it carries a `late.App`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from late.app.app import App
from late.celery.bases import HasTaskClass, class_of, follow
from late.celery.control import Control
from late.celery.exceptions import NotSupported
from late.celery.modules import Modules
from late.celery.rates import queue_with, rate_of
from late.celery.result import AsyncResult
from late.celery.run import register
from late.celery.settings import Settings, Source, read
from late.celery.signatures import Signature
from late.celery.task import Task, running_task
from late.errors import UnknownTask

_REFUSED = {
    "pydantic": "annotate the parameters of a task of `late` itself",
} | dict.fromkeys(
    ("lane", "limit_key", "process", "result_ttl", "transaction", "unique_key"),
    "a setting of tasks of `late` itself: `@queue.task`, on the app that late_app= is",
)
_LONG = {"broker": "broker_url", "backend": "result_backend"}
_shared: list[Task] = []
_apps: list[Celery] = []


class Celery(HasTaskClass):
    """Celery's app on a `late.App`. A worker runs its tasks: `late worker module:app`.

    Args:
        main: the name that replaces `__main__` in names of tasks.
        late_app: the app with the database.
        config_source, namespace: see `config_from_object`.
        task_cls: the class that tasks without `base=` derive from, or its name; see `app.Task`.
        strict_typing: False lets tasks without `typing=` take calls that do not fit the function.
        settings: see `Settings.update`; `broker` and `backend` are Celery's names for two of them.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(
        self, main: str | None = None, *, late_app: App, config_source: Source | None = None,
        namespace: str | None = None, task_cls: Any = None, strict_typing: bool = True,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.strict_typing = strict_typing
        self.main = main
        self.late_app = late_app
        self.on_conflict: Literal["existing", "reject"] = "existing"
        """The treatment of a `task_id` that another task has; see `TaskOptions`."""
        self.tasks = {}
        if (wanted := task_cls or self.task_cls) is not None:
            self._base = class_of(wanted, "task_cls")
        self.conf = Settings(lambda: len(self.tasks))
        self._modules = Modules(self.conf)
        late_app.loaders.append(self.import_default_modules)
        # The transactions of a project of Django are those of the database with its tasks.
        if (alias := getattr(late_app, "django_database", None)) is not None:
            self.conf.update({"late_django_database": alias})
        if config_source is not None:
            self.config_from_object(config_source, namespace=namespace)
        self.conf.update({_LONG.get(name, name): value for name, value in settings.items()})
        self.control = Control(self)
        _apps.append(self)
        for task in _shared:
            self._add(task)

    def __repr__(self) -> str:
        return f"<Celery {self.main} with {len(self.tasks)} tasks>"

    def __enter__(self) -> Celery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no shared tasks of later. It may be called twice."""
        if self in _apps:
            _apps.remove(self)

    def set_current(self) -> None:
        """Be the app that was made last: calls of shared tasks and `AsyncResult(id)` go to it."""
        self.close()
        _apps.append(self)
        for task in _shared:
            task.bound = self
            follow(task, self.Task)

    set_default = set_current

    def task(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a task of a function: `@app.task` or `@app.task(bind=True, ...)`.

        Raises:
            NotSupported: an option that works otherwise here; the message says how.
            ConfigError: the name is taken, or the function is `async def`.
        """

        def make(function: Callable[..., Any]) -> Task:
            return self._add(build(function, self.main, options))

        return make if fn is None else make(fn)

    def config_from_object(
        self, obj: Source, silent: bool = False, force: bool = False, namespace: str | None = None
    ) -> None:
        """Take the settings of an object, a mapping, or of what a text names; they are read now.

        Args:
            silent: let a module that is not there be no error.
            force: Celery's, for one that reads later; it changes nothing here.
            namespace: what the names of the settings begin with, as `CELERY` in Django's.

        Raises:
            ImportError: there is no such module.
            ConfigError: see `Settings.update`.
        """
        try:
            found = read(obj, namespace)
        except ImportError:
            if not silent:
                raise
            return
        self.conf.update(found)

    def autodiscover_tasks(
        self, packages: Iterable[str] | Callable[[], Iterable[str]] | None = None,
        related_name: str | None = "tasks", force: bool = False,
    ) -> None:  # fmt: skip
        """Let workers import the module `related_name` of each package that has one.

        Args:
            packages: their names, or what returns them; those of Django's apps if there are none.
            related_name: None imports the packages themselves.
            force: import them now, and not when a worker starts.
        """
        self._modules.discover(packages, related_name)
        if force:
            self.import_default_modules()

    def import_default_modules(self) -> None:
        """Import `conf.imports`, `conf.include` and what is to be discovered, as a worker does.

        Raises:
            ImportError: a module of `imports` or `include` is missing. What a module raises is
                passed on.
        """
        self._modules.load()

    def register_task(self, task: Task) -> Task:
        """Register an instance of a subclass of `Task`."""
        if not task.name:
            task.name = f"{type(task).__module__}.{type(task).__name__}"
        return self._add(task)

    def send_task(
        self, name: str, args: Any = None, kwargs: Any = None, **options: Any
    ) -> AsyncResult:
        """Call a registered task by its name.

        Raises:
            UnknownTask: no such task is registered with this app.
        """
        found: AsyncResult = self._named(name).send(args, kwargs, options)
        return found

    @property
    def current_task(self) -> Any:
        """The task that runs here, or None."""
        return running_task()

    def AsyncResult(self, id: str) -> AsyncResult:
        """Return the result of a task by its id."""
        return AsyncResult(id, self)

    def signature(self, name: str, args: Any = (), kwargs: Any = None, **options: Any) -> Signature:
        """Return a call of a registered task as a value; see `Task.signature`.

        Raises:
            UnknownTask: no such task is registered with this app.
        """
        return self._named(name).signature(args, kwargs, **options)

    def add_periodic_task(
        self, schedule: Any, sig: Signature, args: Any = (), kwargs: Any = None,
        name: str | None = None, **options: Any,
    ) -> str:  # fmt: skip
        """Add an entry to `conf.beat_schedule`, which `late celery beat` reads; return its key."""
        call = sig.clone(args, kwargs, **options)
        key = name or repr(call)
        entry = {"task": call.task, "schedule": schedule, "args": call.args,
                 "kwargs": call.kwargs, "options": call.options}  # fmt: skip
        self.conf.beat_schedule = {**(self.conf.beat_schedule or {}), key: entry}
        return key

    def queue_of(self, task: Task) -> str:
        """Return the queue of a task: its own, or that of the first route that fits its name.

        One with a `rate_limit` has a queue of its own, whose name begins with that.
        """
        queue = self._queue_of(task)
        limited = rate_of(task.name, task.rate_limit) is not None
        return queue_with(task.name, queue) if limited else queue

    def _queue_of(self, task: Task) -> str:
        if task.queue:
            return task.queue
        for pattern, queue in (self.conf.task_routes or {}).items():
            if (
                pattern.match(task.name)
                if isinstance(pattern, re.Pattern)
                else fnmatchcase(task.name, pattern)
            ):
                return str(queue)
        return str(self.conf.task_default_queue)

    def _named(self, name: str) -> Task:
        if name not in self.tasks:
            self.import_default_modules()
        if name not in self.tasks:
            raise UnknownTask(f"no task {name!r:.80} is registered with {self!r}")
        return self.tasks[name]

    def _add(self, task: Task) -> Task:
        follow(task, self.Task)
        if task.serializer not in (None, "json"):
            raise NotSupported(f"{task.name}: serializer is json; pickle can run any code")
        register(task, self)
        self.tasks[task.name] = task
        task.bound = self
        return task


def shared_task(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a task for every app, of before and of later. A call goes to the app made last."""

    def make(function: Callable[..., Any]) -> Task:
        task = build(function, None, options)
        _shared.append(task)
        for app in _apps:
            app._add(task)
        return task

    return make if fn is None else make(fn)


def build(function: Callable[..., Any], main: str | None, options: Mapping[str, Any]) -> Task:
    """Return the task of a function. Each option is an attribute of it, as in Celery.

    Raises:
        NotSupported, ConfigError: see `Celery.task`.
        TypeError: it is a task already.
    """
    if isinstance(function, Task):
        raise TypeError(f"{function!r}: a decorator makes a task of it more than once")
    given = dict(options)
    for option in _REFUSED.keys() & given.keys():
        raise NotSupported(f"{function.__qualname__}: {option}: {_REFUSED[option]}")
    if inspect.iscoroutinefunction(function):
        raise NotSupported(f"{function.__qualname__}: a coroutine is a task of `late` itself")
    base = given.pop("base", None)
    bind = given.pop("bind", False)
    module = main if main and function.__module__ == "__main__" else function.__module__
    given["name"] = given.get("name") or f"{module}.{function.__name__}"
    run = function if bind else staticmethod(function)
    described = {
        "run": run,
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__name__": function.__name__,
        "__wrapped__": run,
        "follows_app": base is None,
    }
    parent = class_of(base or Task, function.__qualname__)
    made: Task = type(function.__name__, (parent,), described | given)()
    return made

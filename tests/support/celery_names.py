"""A package `celery` for Celery's own tests: its names are those of `late.celery`, and no others.

A pytest plugin of `tests.support.celery_suite`. A name that `late.celery` does not offer can be
imported, and raises `NotHere` when it is used; so does an attribute of an object of ours. The
outcome of each test goes as one line of JSON to the file that `LATE_CELERY_OUTCOMES` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import late
from late.celery import app as apps
from late.celery import current_app, current_task, exceptions, signals, states
from late.celery import signature as by_name
from late.celery.app import Celery, shared_task
from late.celery.control import Control
from late.celery.result import AsyncResult, EagerResult, GroupResult
from late.celery.signatures import Chain, Chord, Group, Signature, chain, chord, group
from late.celery.task import Request, Task
from late.celery.utils import uuid
from late.celery.utils.log import get_task_logger
from late.config import WorkerConfig
from late.errors import ConfigError
from late.schema.migrate import upgrade
from late.worker.worker import Worker

URL = os.environ.get("LATE_CELERY_URL", "")
OUTCOMES = os.environ.get("LATE_CELERY_OUTCOMES", "")
LIMIT_S = 120


class NotHere(AttributeError):
    """A test has used a name that `late.celery` does not offer."""


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotHere(cls.__doc__)


class Missing(Exception, metaclass=_Kind):
    """A name that is not there: anything may be derived from it, and nothing made of it."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        raise NotHere(cls.__doc__)


def _missing(name: str) -> type[Missing]:
    return _Kind(name.rpartition(".")[2], (Missing,), {"__doc__": name})


class StandIn(Celery):
    """Celery's app, as its tests make it: on the database of the suite."""

    def __init__(self, main: str | None = None, **settings: Any) -> None:
        settings.pop("set_as_current", None)
        super().__init__(main, late_app=late.App(URL), late_outside_transaction="open", **settings)


class _Refused:
    """A task of a module that `late.celery` refuses: whoever uses it gets the refusal."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def _shared_task(*given: Any, **options: Any) -> Any:
    """Make a shared task; one that is refused does not keep the tests of the others away."""

    def make(function: Any) -> Any:
        before = list(apps._shared)
        try:
            return shared_task(**options)(function)
        except ConfigError as error:
            apps._shared[:] = before
            return _Refused(error)

    return make(given[0]) if given else make


NAMES: dict[str, dict[str, Any]] = {
    "celery": {
        "Celery": StandIn,
        "Signature": Signature,
        "Task": Task,
        "chain": chain,
        "chord": chord,
        "group": group,
        "shared_task": _shared_task,
        "current_app": current_app,
        "current_task": current_task,
        "signature": by_name,
        "uuid": uuid,
    },
    "celery.app.task": {"Task": Task},
    "celery.exceptions": {
        **{name: found for name, found in vars(exceptions).items() if isinstance(found, type)},
    },
    "celery.canvas": {"Signature": Signature, "chain": chain, "chord": chord, "group": group},
    "celery.result": {"AsyncResult": AsyncResult, "EagerResult": EagerResult,
                      "GroupResult": GroupResult},
    "celery.signals": {
        name: found for name, found in vars(signals).items() if isinstance(found, signals.Signal)
    },
    "celery.states": vars(states),
    "celery.utils": {"uuid": uuid},
    "celery.utils.log": {"get_task_logger": get_task_logger},
    "celery.utils.serialization": {"pickle": pickle},
    # Decorators of a module of tasks, at its top. What they decorate is of Celery's worker.
    "celery.worker.control": {
        name: lambda **_: lambda function: function
        for name in ("control_command", "inspect_command")
    },
}  # fmt: skip


class _Module(ModuleType):
    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{self.__name__}.{name}"
        if whole in NAMES:
            return import_module(whole)
        return NAMES.get(self.__name__, {}).get(name) or _missing(whole)

    def __setattr__(self, name: str, value: Any) -> None:
        # A submodule is set by the import. Anything else is a test that patches Celery's inside.
        if name.startswith("__") or isinstance(value, _Module):
            super().__setattr__(name, value)
        else:
            raise NotHere(f"{self.__name__}.{name}")


class _Names(MetaPathFinder, Loader):
    """Finds `celery` and any module in it, before an installed one is found."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        mine = fullname.partition(".")[0] == "celery"
        return ModuleSpec(fullname, self, is_package=True) if mine else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def _offers_nothing_else() -> None:
    """Let an attribute that our objects lack say so by `NotHere`."""

    def of(title: str) -> Any:
        def get(self: Any, name: str) -> Any:
            raise NotHere(f"{title}.{name}")

        return get

    kinds = {Celery: "app", Control: "app.control", Task: "task", Request: "request",
             Signature: "signature", Chain: "chain", Group: "group", Chord: "chord",
             AsyncResult: "result"}  # fmt: skip
    for kind, title in kinds.items():
        kind.__getattr__ = of(title)  # type: ignore[attr-defined]


if OUTCOMES:
    sys.meta_path.insert(0, _Names())
    _offers_nothing_else()
    upgrade(URL)
    StandIn("first")  # A shared task is registered with it at once, and so refused at once.


# --- the fixtures of Celery's conftest files


@pytest.fixture
def app() -> StandIn:
    return StandIn("t")


@pytest.fixture(autouse=True)
def _shortcuts(request: pytest.FixtureRequest) -> None:
    """Set what tests in classes of `t/unit` find at themselves."""
    if request.instance is not None and "integration" not in str(request.path):
        found = request.instance.app = request.getfixturevalue("app")
        request.instance.Celery = StandIn
        request.instance.add = found.task(name="t.add", shared=False)(lambda x, y: x + y)


@pytest.fixture
def depends_on_current_app(app: StandIn) -> None: ...


@pytest.fixture(scope="session")
def celery_session_app() -> StandIn:
    return StandIn("session")


@pytest.fixture(scope="session")
def celery_session_worker(celery_session_app: StandIn) -> Iterator[None]:
    """Run a worker of `late` beside the tests of `t/integration`."""
    stop, ready = threading.Event(), threading.Event()

    async def work() -> None:
        worker = Worker(
            celery_session_app.late_app,
            settings=WorkerConfig(poll_max_s=0.05, settle_delay_s=0.001, concurrency=1),
        )
        await worker.start()
        ready.set()
        await asyncio.to_thread(stop.wait)
        await worker.stop()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert ready.wait(LIMIT_S)
    yield
    stop.set()
    thread.join()


@pytest.fixture
def manager(celery_session_app: StandIn, celery_session_worker: None) -> SimpleNamespace:
    return SimpleNamespace(app=celery_session_app)


# --- the outcomes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(LIMIT_S), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if OUTCOMES and (report.when == "call" or report.outcome != "passed"):
        kind, said = "passed", ""
        if report.skipped:
            kind = "skipped"
        elif call.excinfo is not None:
            kind, said = _judged(call.excinfo.value)
        name = re.sub(r"^.*?(?=\bt/)", "", item.nodeid)
        line = json.dumps({"test": name, "outcome": kind, "said": said})
        with Path(OUTCOMES).open("a") as file:
            file.write(line + "\n")
    return report


def _judged(error: BaseException | None) -> tuple[str, str]:
    """Return how a failure counts, and what it says."""
    seen = error
    while seen is not None:
        if isinstance(seen, NotHere):
            return "absent", str(seen)
        if isinstance(seen, ConfigError):
            return "refused", str(seen)
        seen = seen.__cause__ or seen.__context__
    return "failed", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

"""Load the app that a `module:app` text names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from late.errors import ConfigError, LateError

if TYPE_CHECKING:
    from late.app.app import App

T = TypeVar("T")


class ImportFailed(ConfigError):
    """A module of the service has raised an error, which is the cause, while it was imported."""

    def traceback(self) -> str:
        """Return the traceback of the cause, from the first frame of the service on."""
        cause = self.__cause__
        assert cause is not None
        frames = cause.__traceback__
        while frames is not None and _is_loading(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        return "".join(traceback.format_exception(cause.with_traceback(frames)))


def _is_loading(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def load_app(target: str) -> App:
    """Return the `late.App` that `module:name` names; the name is `app` if it is left out.

    A `late.celery.Celery` or a `Router` stands for the app that it carries. The modules with the
    tasks of those that the app has are imported.

    Raises:
        ConfigError: see `load`; or what is there is no `late.App`.
    """
    from late.app.app import App

    found: Any = load(target)
    found = getattr(found, "late_app", found)
    if not isinstance(found, App):
        raise ConfigError(f"{target} is a {type(found).__name__}, not a late.App")
    for load_modules in found.loaders:
        _imported(target, load_modules)
    return found


def emptiness(app: App, target: str) -> str | None:
    """Return a warning if an app can run nothing, else None."""
    if app.tasks or app.routes:
        return None
    return f"{target} has no tasks: import the modules that define them"


def without_consumers(app: App, target: str) -> str | None:
    """Return a warning if an app has queues that consumers pull, for a process without a port."""
    from late.model.task import PULL

    pulled = sorted(queue for queue, policy in app.routes.items() if policy.target == PULL)
    if not pulled:
        return None
    return (
        f"consumers pull {', '.join(pulled[:5])}, and this process has no port for them: tasks of "
        f"its shards wait. Run `late serve {target}` in its place: it runs the other queues too"
    )


def load(target: str) -> object:
    """Return what `module:name` names; the name is `app` if it is left out.

    The current folder is searched first, as `python -m` does: a service's own modules are usually
    not installed.

    Raises:
        ConfigError: no such module, or no such name in it.
        ImportFailed: the module itself has raised an error.
    """
    module_name, _, name = target.partition(":")
    name = name or "app"
    if not all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")]):
        raise ConfigError(f"{target[:128]!r}: expected MODULE:APP, such as shop.tasks:app")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = _imported(module_name, lambda: importlib.import_module(module_name))
    except ImportFailed as failed:
        missing = failed.__cause__.name if isinstance(failed.__cause__, ModuleNotFoundError) else ""
        # Only if this module is missing: an error about one that it imports is the service's own.
        if not missing or not (module_name + ".").startswith(missing + "."):
            raise
        raise ConfigError(f"no module {missing!r} (looked in {folder} and sys.path)") from failed
    found: object = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"module {module_name!r} has no {name!r}") from None
    return found


def _imported(name: str, call: Callable[[], T]) -> T:
    """Import what `name` names, by `call`.

    Raises:
        ImportFailed: it has raised an error; those of `late` are raised as they are.
    """
    try:
        return call()
    except LateError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ImportFailed(f"{name} cannot be imported: {said}") from error

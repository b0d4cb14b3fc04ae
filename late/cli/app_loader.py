"""Load the app that a `module:app` text names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from late.errors import ConfigError

if TYPE_CHECKING:
    from late.app.app import App


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
        load_modules()
    return found


def emptiness(app: App, target: str) -> str | None:
    """Return a warning if an app can run nothing, else None."""
    if app.tasks or app.routes:
        return None
    return f"{target} has no tasks: import the modules that define them"


def load(target: str) -> object:
    """Return what `module:name` names; the name is `app` if it is left out.

    The current folder is searched first, as `python -m` does: a service's own modules are usually
    not installed.

    Raises:
        ConfigError: no such module, or no such name in it. An error within the module itself is
            the service's own and is passed on.
    """
    module_name, _, name = target.partition(":")
    name = name or "app"
    if not all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")]):
        raise ConfigError(f"{target[:128]!r}: expected MODULE:APP, such as shop.tasks:app")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only if this module is missing: an error about one that it imports is the service's own.
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ConfigError(f"no module {error.name!r} (looked in {folder} and sys.path)") from error
    found: object = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"module {module_name!r} has no {name!r}") from None
    return found

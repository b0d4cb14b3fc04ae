"""Compare what a scan found with the tasks that a real app of Celery has registered."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from late.celery.scan.report import Scan, scan
from late.errors import ConfigError


def scan_app(target: str) -> Scan:
    """Import `MODULE:APP`, scan the source of its package, and note what only the app knows.

    Celery itself is imported by the module, not by `late`.

    Raises:
        ConfigError: no such module or name, or it is no app of Celery. What the module itself
            raises is passed on.
    """
    app = _load(target)
    try:
        app.loader.import_default_modules()
        app.finalize(auto=True)
        names = set(app.tasks)
    except AttributeError:
        raise ConfigError(f"{target} is a {type(app).__name__}, not an app of Celery") from None
    found = scan(_root(target.partition(":")[0]))
    seen = {task.name for task in found.tasks}
    found.unseen = sorted(n for n in names - seen if not n.startswith("celery."))
    return found


def _load(target: str) -> Any:
    module_name, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ConfigError(f"no folder, no file and no module {module_name!r}") from None
    found: Any = module
    for part in (name or "app").split("."):
        if not hasattr(found, part):
            raise ConfigError(f"module {module_name!r} has no {name or 'app'!r}")
        found = getattr(found, part)
    return found


def _root(module_name: str) -> Path:
    """Return the folder of the highest package of a module, or the file of one without."""
    file = getattr(sys.modules[module_name.partition(".")[0]], "__file__", None)
    if file is None:
        raise ConfigError(f"{module_name} has no file: give the folder of its source")
    path = Path(file)
    return path.parent if path.name == "__init__.py" else path

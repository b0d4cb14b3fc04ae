"""Compare what a scan found with the tasks that a real app of Celery has registered."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from late.celery.scan.project import read
from late.celery.scan.report import Scan, scan_project
from late.errors import ConfigError

INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders of packages that are no source of the project."""


def scan_app(app: Any, module_name: str) -> Scan:
    """Scan the source of an app's project, and note what only the app knows.

    Args:
        app: Celery's app, imported by the caller: `late` itself does not need Celery.
        module_name: the module that it came from.

    Raises:
        ConfigError: it is no app of Celery. What its modules raise is passed on.
    """
    if not all(hasattr(app, part) for part in ("loader", "finalize", "tasks")):
        raise ConfigError(f"a {type(app).__name__} is no app of Celery")
    app.loader.import_default_modules()
    app.finalize(auto=True)
    own = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}
    modules = {str(getattr(task, "__module__", "")) for task in own.values()}
    found = scan_project(read(*folders(module_name, modules)))
    found.unseen = sorted(own.keys() - {task.name for task in found.tasks})
    return found


def folders(module_name: str, others: Iterable[str]) -> list[Path]:
    """Return the folders with the source: of a module, and of other ones that are not below it.

    Of a module it is the folder that holds its top package, and so the packages beside it too. Of
    an installed one it is that package alone, and no other package that is installed is read.
    """
    found = [_folder_of(module_name) or _package_of(module_name)]
    for folder in sorted({each for name in others if (each := _folder_of(name)) is not None}):
        if not any(folder.is_relative_to(known) for known in found):
            found.append(folder)
    return found


def _folder_of(module_name: str) -> Path | None:
    """Return the folder that holds the top package of a module, or None for an installed one."""
    top = module_name.partition(".")[0]
    if top not in sys.modules or top in sys.stdlib_module_names:
        return None
    folder = _package_of(top).parent
    return None if INSTALLED & set(folder.parts) else folder


def _package_of(module_name: str) -> Path:
    """Return the folder of a top package, or the file of a module without one."""
    module = sys.modules[module_name.partition(".")[0]]
    if module.__file__ is None:
        return Path(next(iter(module.__path__))).absolute()
    path = Path(module.__file__).absolute()
    return path.parent if path.name == "__init__.py" else path
